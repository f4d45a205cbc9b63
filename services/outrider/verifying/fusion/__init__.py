"""Several drafters for one session: whom to ask, and one tree of what they proposed. Pure."""
