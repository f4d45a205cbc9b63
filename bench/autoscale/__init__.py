"""Load up and down on Ray Serve: replicas follow by the policies, and every stream gets all of its tokens."""
