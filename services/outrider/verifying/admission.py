"""From a request to a session: every bound that depends on the model, the pool and the drafters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from outrider.config.schema import VerifierConfig
from outrider.core import limits
from outrider.core.acceptance import rule_of
from outrider.core.errors import InvalidRequestError, ModelMismatchError, PromptTooLongError
from outrider.core.models import ModelInfo
from outrider.core.params import FUSED, JOINED, OFF, SamplingParams, SpeculationParams, StopParams
from outrider.core.sessions import SessionRecord
from outrider.core.tenants import salt_of
from outrider.wire.messages import SessionRequest


@dataclass(frozen=True, slots=True)
class Admission:
    """What a verifier can take."""

    model: ModelInfo
    eos_token_ids: frozenset[int]
    pool_tokens: int  # tokens that fit the KV pool
    config: VerifierConfig
    drafters: tuple[str, ...]  # names that a request may ask for; all together are the default
    draft_lengths: Mapping[str, int] = field(default_factory=dict)  # of drafters that have one of their own

    def record(self, request: SessionRequest) -> SessionRecord:
        """The session that a request asks for, with every default filled in.

        Raises:
            InvalidRequestError: which field, what was wrong, what is allowed.
            PromptTooLongError: it could never run here: too long for the context or for the pool.
        """
        limits.check_session_id(request.session_id)
        limits.check_prompt(
            request.prompt, vocab_size=self.model.vocab_size, context_length=self.model.context_length
        )
        limits.check_sampling(request.sampling, vocab_size=self.model.vocab_size)
        limits.check_speculation(request.speculation)
        limits.check_logprobs(request.logprobs)
        limits.check_cache_salt(request.cache_salt)
        limits.check_tenant(request.tenant)
        self._check_drafter(request.speculation.drafter)
        stop = self._stop(request)
        return SessionRecord(
            request.session_id,
            request.prompt,
            _with_end_tokens(request.sampling, stop),
            stop,
            replace(
                request.speculation, acceptance=rule_of(request.speculation.acceptance, request.sampling)
            ),
            logprobs=request.logprobs,
            model=self.model.identity,
            cache_salt=salt_of(request.tenant, request.cache_salt),
            tenant=request.tenant,
            presentation=request.presentation,
        )

    def check_model(self, record: SessionRecord) -> None:
        """A session that began elsewhere is one of this model.

        Raises:
            ModelMismatchError: it is not; names both models.
        """
        if record.model and record.model != self.model.identity:
            raise ModelMismatchError(
                f"session {record.session_id} is one of model {record.model}, "
                f"this verifier serves {self.model.identity}"
            )

    def check_fits(self, record: SessionRecord) -> None:
        """A session that began elsewhere can run here.

        Raises:
            InvalidRequestError: its prompt is not of this model's vocabulary.
            PromptTooLongError: it is too long for this verifier's context or pool.
        """
        context = self.model.context_length
        limits.check_prompt(record.prompt, vocab_size=self.model.vocab_size, context_length=context)
        limits.check_length(len(record.prompt), record.stop.max_tokens, context_length=context)
        needed = len(record.prompt) + record.stop.max_tokens - 1
        if needed > self.pool_tokens:
            raise PromptTooLongError(
                f"session {record.session_id} may need {needed} tokens of KV, "
                f"the pool holds {self.pool_tokens}"
            )

    def drafting(self, speculation: SpeculationParams) -> tuple[tuple[tuple[str, int], ...], int]:
        """Drafters to use, with the depth of their drafts, and most draft tokens a round; none: it is off.

        A name that is not known here (a session that began elsewhere) means the default: it
        changes speed only.
        """
        if not speculation.enabled or speculation.drafter == OFF:
            return (), 0
        names = self._named(speculation.drafter) or self._named(self.config.drafter) or self.drafters
        asked = speculation.max_draft_tokens
        most = self.config.max_draft_tokens if asked is None else min(asked, self.config.max_draft_tokens)
        usual = {name: self.draft_lengths.get(name, self.config.draft_length) for name in names}
        depths = {name: min(usual[name] if asked is None else asked, most) for name in names}
        return tuple((name, depth) for name, depth in depths.items() if depth), most

    def _named(self, drafter: str) -> tuple[str, ...]:
        """The drafters that a name stands for; none if it is not known, or says nothing."""
        if drafter == FUSED:
            return self.drafters
        names = tuple(dict.fromkeys(drafter.split(JOINED))) if drafter else ()
        return names if all(name in self.drafters for name in names) else ()

    def _check_drafter(self, name: str) -> None:
        if name and name != OFF and not (self._named(name) or name == FUSED):
            known = ", ".join((*self.drafters, FUSED, OFF)) if self.drafters else f"none, only {OFF}"
            raise InvalidRequestError(
                f"speculation.drafter is {limits.quoted(name)}, the drafters here are: {known}",
                field="speculation.drafter",
            )

    def _stop(self, request: SessionRequest) -> StopParams:
        """When to end: what was asked for has to fit; what was not is made to fit."""
        prompt = len(request.prompt)
        # The last token generated is never run, so it needs no KV.
        pool_room = self.pool_tokens - prompt + 1
        if pool_room < 1:
            raise PromptTooLongError(
                f"prompt must hold at most {self.pool_tokens} tokens (the KV pool), got {prompt}",
                field="prompt",
            )
        asked = request.stop.max_tokens
        if asked:
            limits.check_length(prompt, asked, context_length=self.model.context_length)
            if asked > pool_room:
                raise PromptTooLongError(
                    f"max_tokens must be at most {pool_room} after a prompt of {prompt} tokens "
                    f"(the KV pool holds {self.pool_tokens}), got {asked}",
                    field="max_tokens",
                )
        context = self.model.context_length
        room = min(pool_room, context - prompt) if context else pool_room
        stop = request.stop.resolve(eos_token_ids=self.eos_token_ids, room=room)
        limits.check_stop(stop, vocab_size=None)
        return stop


def _with_end_tokens(sampling: SamplingParams, stop: StopParams) -> SamplingParams:
    """Tell the edits which tokens end the output, for min_tokens and grammars; drafters hear of them so.

    Raises:
        InvalidRequestError: min_tokens is more than there may ever be.
    """
    limits.check_min_tokens(sampling.edits.min_tokens, stop.max_tokens)
    needed = sampling.edits.min_tokens or sampling.edits.grammar
    ends = tuple(sorted(stop.stop_token_ids)) if needed else ()
    return replace(sampling, edits=replace(sampling.edits, end_token_ids=ends))
