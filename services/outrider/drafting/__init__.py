"""The drafter: drafting methods, their sessions, the batching scheduler and the gRPC service."""
