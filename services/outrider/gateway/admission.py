"""What a client asks, checked against all bounds and put into token ids: what a verifier is asked."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, replace

from outrider.core import limits
from outrider.core.errors import InvalidRequestError, ModelNotFoundError
from outrider.core.params import SamplingParams
from outrider.gateway.presentation import Call, Presentation, digest_of
from outrider.gateway.tokenizer import TextTokenizer
from outrider.wire.messages import ChatTurn, Conversation, GenerationRequest, SessionRequest, VerifierInfo

_UNBOUNDED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """How a prompt becomes token ids, and how strictly it must fit."""

    add_special_tokens: bool | None = None  # None: to plain prompts, not to conversations
    truncate_to: int | None = None  # keep so many last tokens; -1: as many as fit
    clamp_max_tokens: bool = False  # max_tokens is a default: take as much of it as fits


class PromptAdmission:
    """Admits the requests of one prompt, which differ in nothing but their seeds."""

    def __init__(self, options: PromptOptions | None = None, call: Call | None = None) -> None:
        self._options = options or PromptOptions()
        self._call = call or Call()
        self._admitting = asyncio.Lock()
        self._first: SessionRequest | None = None

    def named(self, session_id: str) -> Admission:
        """For the request whose session is to have this id."""
        return Admission(self, session_id)

    async def session(
        self, request: GenerationRequest, info: VerifierInfo, tokenizer: TextTokenizer, session_id: str
    ) -> SessionRequest:
        """The session that `request` means. What the first one took to check serves all.

        Raises:
            OutriderError: see `admit`.
        """
        async with self._admitting:
            if self._first is None:
                self._first = await admit(request, self._options, self._call, info, tokenizer)
        sampling = replace(self._first.sampling, seed=request.sampling.seed)
        return replace(self._first, session_id=session_id, sampling=sampling)


class Admission:
    """Admits one request."""

    def __init__(self, prompt: PromptAdmission | None = None, session_id: str = "") -> None:
        """`prompt` is shared by the requests of a prompt."""
        self._prompt = prompt or PromptAdmission()
        self.session_id = session_id or str(uuid.uuid4())

    async def session(
        self, request: GenerationRequest, info: VerifierInfo, tokenizer: TextTokenizer
    ) -> SessionRequest:
        """The session that `request` means.

        Raises:
            OutriderError: see `admit`.
        """
        return await self._prompt.session(request, info, tokenizer, self.session_id)


async def admit(
    request: GenerationRequest,
    options: PromptOptions,
    call: Call,
    info: VerifierInfo,
    tokenizer: TextTokenizer,
) -> SessionRequest:
    """The session that `request` means, under an id of its own.

    Raises:
        InvalidRequestError: a field is out of bounds, or the prompt does not fit.
        ModelNotFoundError: another model is asked for.
    """
    model = info.model
    if request.model and request.model != model.model_name:
        raise ModelNotFoundError(
            f"there is no model {limits.quoted(request.model)}, this gateway serves {model.model_name!r}"
        )
    vocab_size = model.vocab_size or None
    limits.check_stop_strings(request.stop.stop)
    limits.check_speculation(request.speculation)
    limits.check_logprobs(request.logprobs)
    limits.check_cache_salt(request.cache_salt)
    limits.check_bad_words(request.bad_words)
    sampling = _without_bad_words(request, tokenizer)
    limits.check_sampling(sampling, vocab_size=vocab_size)
    prompt = await _encode(request, options, model.context_length, tokenizer)
    context = model.context_length
    limits.check_prompt(prompt, vocab_size=model.vocab_size, context_length=context)
    if not options.clamp_max_tokens:
        limits.check_length(len(prompt), request.stop.max_tokens, context_length=context)
    room = context - len(prompt) if context else _UNBOUNDED
    if info.pool_tokens and (options.clamp_max_tokens or not request.stop.max_tokens):
        # What is asked for and does not fit the pool the verifier refuses itself, and a prompt that does not.
        room = min(room, max(1, info.pool_tokens - len(prompt) + 1))
    stop = request.stop.resolve(eos_token_ids=(), room=room)
    limits.check_stop(stop, vocab_size=vocab_size)
    limits.check_min_tokens(sampling.edits.min_tokens, stop.max_tokens)
    return SessionRequest(
        session_id=str(uuid.uuid4()),
        prompt=prompt,
        sampling=sampling,
        stop=replace(request.stop, max_tokens=stop.max_tokens, stop=(), include_stop=False),
        speculation=request.speculation,
        logprobs=request.logprobs,
        cache_salt=request.cache_salt,
        presentation=_presentation(request, call, prompt, tokenizer).encode(),
    )


def _presentation(
    request: GenerationRequest, call: Call, prompt: tuple[int, ...], tokenizer: TextTokenizer
) -> Presentation:
    return Presentation(
        operation=call.operation,
        created=call.created,
        digest=digest_of(call.body_digest, prompt),
        stop=request.stop.stop,
        include_stop=request.stop.include_stop,
        min_tokens=request.sampling.edits.min_tokens,
        skip_special_tokens=request.skip_special_tokens and not tokenizer.shows_special_tokens(request.input),
        logprobs=request.logprobs.top is not None,
    )


def _without_bad_words(request: GenerationRequest, tokenizer: TextTokenizer) -> SamplingParams:
    """Bad words as token ids, each as it starts a text and as it follows a space.

    The second form counts only where the space belongs to the word's own first token, as in vLLM
    (`SamplingParams.update_from_tokenizer`): elsewhere the first form finds the word after a space too.
    """
    if not request.bad_words:
        return request.sampling
    sequences = list(request.sampling.edits.bad_words)
    for word in request.bad_words:
        bare = tokenizer.encode_words(word.lstrip())
        if not bare:
            raise InvalidRequestError("bad_words must hold words, got one of spaces alone", field="bad_words")
        spaced = tokenizer.encode_words(" " + word.lstrip())
        forms = [bare, spaced] if spaced[:1] != bare[:1] and len(spaced) == len(bare) else [bare]
        sequences += [form for form in forms if form not in sequences]
    edits = replace(request.sampling.edits, bad_words=tuple(sequences))
    return replace(request.sampling, edits=edits)


async def _encode(
    request: GenerationRequest, options: PromptOptions, context_length: int, tokenizer: TextTokenizer
) -> tuple[int, ...]:
    # A text that is cut to the context may be of any length.
    bound = context_length if options.truncate_to is None else 0
    special = options.add_special_tokens
    if isinstance(request.input, Conversation):
        ids = await tokenizer.encode_chat(
            request.input, context_length=bound, add_special_tokens=bool(special)
        )
    elif isinstance(request.input, str):
        ids = await tokenizer.encode_prompt(
            request.input, context_length=bound, add_special_tokens=special is not False
        )
    elif turns := tuple(turn for turn in request.input if isinstance(turn, ChatTurn)):
        ids = await tokenizer.encode_chat(turns, context_length=bound, add_special_tokens=bool(special))
    else:
        ids = tuple(item for item in request.input if isinstance(item, int))
    if options.truncate_to is None:
        return ids
    if options.truncate_to > 0:
        return ids[-options.truncate_to :]
    room = context_length - max(request.stop.max_tokens, 1)
    return ids[-room:] if context_length and room > 0 else ids
