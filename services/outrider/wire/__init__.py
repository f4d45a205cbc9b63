"""Everything that touches gRPC: generated stubs, conversion to core types, errors, channels.

- `messages` dataclasses for what passes between services and has no type in core
- `convert`  one function pair per proto message; the only code that reads what a peer sent
- `errors`   the exception tree as gRPC status and back
- `services` typed clients, and typed base classes of the servers
- `channels` channels and servers with explicit options, health, reflection
- `metadata` names and readers of gRPC metadata
"""
