"""The OpenAI HTTP API, served by FastAPI.

- `requests`    bodies that clients send, and what they mean
- `unsupported` parameters of OpenAI and vLLM that are refused
- `responses`   bodies and events that clients get
- `errors`      exceptions as OpenAI's error bodies
- `exchange`    one request answered while it runs, until the client goes away
- `routes`      the endpoints
"""
