"""The OpenAI HTTP API, served by FastAPI.

- `bodies`                          reads and parses a request's body
- `requests`, `generation_body`     bodies that clients send, and what they mean, with their fields in
  `parameters`, `messages`, `structured` and `tools`
- `unsupported`                     parameters of OpenAI and vLLM that are refused
- `budget`                          what one request may ask for in all
- `responses`                       bodies and events that clients get
- `shapes`, `chat_shape`, `completion_shape`   fill them, with `answers`, `called`, `counts` and `logprobs`
- `errors`                          exceptions as OpenAI's error bodies
- `exchange`                        one request answered while it runs, until the client goes away
- `streaming`, `positions`          answers as events, and the ids that a broken stream goes on from
- `routes`, `openapi`               the endpoints, and the page that describes them
"""
