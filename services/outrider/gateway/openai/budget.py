"""What one request may ask for in all."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.core.errors import InvalidRequestError
from outrider.gateway.openai.generation_body import GenerationBody


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds of a request as a whole; GatewayConfig explains each."""

    max_body_bytes: int
    max_choices: int
    max_request_tokens: int

    def check(self, body: GenerationBody, context_length: int) -> None:
        """How many answers, and how many tokens they may have together. One answer is always allowed.

        Raises:
            InvalidRequestError: too many.
        """
        count = body.prompts * body.candidates
        field = "n" if body.candidates == body.choices else "best_of"
        if count > self.max_choices:
            raise InvalidRequestError(
                f"prompts x {field} must be at most {self.max_choices}, "
                f"got {body.prompts} x {body.candidates}",
                field=field,
            )
        tokens = count * (body.asked_tokens or context_length)
        if count > 1 and tokens > self.max_request_tokens:
            length = body.asked_tokens or f"{context_length} (the context, as max_tokens is not given)"
            raise InvalidRequestError(
                f"prompts x {field} x max_tokens must be at most {self.max_request_tokens}, "
                f"got {body.prompts} x {body.candidates} x {length}",
                field=field,
            )
