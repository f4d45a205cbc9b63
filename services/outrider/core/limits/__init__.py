"""The bounds of every request parameter, in one place. Standard library only.

Each check raises InvalidRequestError with the field's name, what was given and what is allowed.
"""

from outrider.core.limits.edits import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORD_CHARS,
    MAX_BAD_WORD_SEQUENCES,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_END_TOKEN_IDS,
    MAX_LOGIT_BIAS,
    MAX_LOGIT_BIAS_ENTRIES,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MIN_REPETITION_PENALTY,
    check_bad_words,
    check_edits,
    check_min_tokens,
)
from outrider.core.limits.grammars import (
    MAX_CHOICE_CHARS,
    MAX_CHOICES,
    MAX_GRAMMAR_CHARS,
    MAX_GRAMMAR_NESTING,
    check_grammar,
)
from outrider.core.limits.outputs import (
    MAX_COMPLETIONS,
    MAX_LOGPROBS,
    check_completions,
    check_logprobs,
)
from outrider.core.limits.prompts import check_generated, check_length, check_prompt
from outrider.core.limits.sampling import (
    MAX_SEED,
    MAX_TEMPERATURE,
    MAX_TOP_K,
    MIN_TEMPERATURE,
    check_sampling,
)
from outrider.core.limits.sessions import (
    MAX_CACHE_SALT_CHARS,
    MAX_DRAFT_TOKENS,
    MAX_DRAFTER_NAME_CHARS,
    MAX_PRESENTATION_BYTES,
    MAX_SESSION_ID_CHARS,
    MAX_TENANT_CHARS,
    check_cache_salt,
    check_session_id,
    check_speculation,
    check_tenant,
)
from outrider.core.limits.stops import (
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    check_stop,
    check_stop_strings,
)
from outrider.core.limits.values import MAX_QUOTED_CHARS, MAX_TOKEN_ID, quoted

__all__ = [
    "MAX_ALLOWED_TOKEN_IDS",
    "MAX_BAD_WORDS",
    "MAX_BAD_WORD_CHARS",
    "MAX_BAD_WORD_SEQUENCES",
    "MAX_BAD_WORD_TOKENS",
    "MAX_CACHE_SALT_CHARS",
    "MAX_CHOICES",
    "MAX_CHOICE_CHARS",
    "MAX_COMPLETIONS",
    "MAX_DRAFTER_NAME_CHARS",
    "MAX_DRAFT_TOKENS",
    "MAX_END_TOKEN_IDS",
    "MAX_GRAMMAR_CHARS",
    "MAX_GRAMMAR_NESTING",
    "MAX_LOGIT_BIAS",
    "MAX_LOGIT_BIAS_ENTRIES",
    "MAX_LOGPROBS",
    "MAX_PENALTY",
    "MAX_PRESENTATION_BYTES",
    "MAX_QUOTED_CHARS",
    "MAX_REPETITION_PENALTY",
    "MAX_SEED",
    "MAX_SESSION_ID_CHARS",
    "MAX_STOP_STRINGS",
    "MAX_STOP_STRING_CHARS",
    "MAX_STOP_TOKEN_IDS",
    "MAX_TEMPERATURE",
    "MAX_TENANT_CHARS",
    "MAX_TOKEN_ID",
    "MAX_TOP_K",
    "MIN_REPETITION_PENALTY",
    "MIN_TEMPERATURE",
    "check_bad_words",
    "check_cache_salt",
    "check_completions",
    "check_edits",
    "check_generated",
    "check_grammar",
    "check_length",
    "check_logprobs",
    "check_min_tokens",
    "check_prompt",
    "check_sampling",
    "check_session_id",
    "check_speculation",
    "check_stop",
    "check_stop_strings",
    "check_tenant",
    "quoted",
]
