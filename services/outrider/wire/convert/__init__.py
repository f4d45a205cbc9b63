"""Core types to and from proto messages: `X_to_proto` and `X_from_proto` for each of them.

`X_from_proto` is the gate through which everything from outside comes: what it returns is within
bounds. What a client may say wrongly raises InvalidRequestError, what a service may, ProtocolError;
both name the field.
"""

from outrider.wire.convert.drafter import (
    command_from_proto,
    command_to_proto,
    drafter_info_from_proto,
    drafter_info_request,
    drafter_info_to_proto,
    event_from_proto,
    event_to_proto,
)
from outrider.wire.convert.generation import (
    generation_event_from_proto,
    generation_event_to_proto,
    generation_request_from_proto,
    generation_request_to_proto,
    resume_request_from_proto,
    resumed_event_to_proto,
)
from outrider.wire.convert.logprobs import (
    prompt_logprobs_from_proto,
    prompt_logprobs_to_proto,
)
from outrider.wire.convert.models import (
    model_info_from_proto,
    model_info_to_proto,
)
from outrider.wire.convert.outcomes import (
    finish_from_proto,
    finish_to_proto,
    stats_from_proto,
    stats_to_proto,
    usage_from_proto,
    usage_to_proto,
)
from outrider.wire.convert.params import (
    acceptance_from_proto,
    acceptance_to_proto,
    logprob_params_from_proto,
    logprob_params_to_proto,
    speculation_from_proto,
    speculation_to_proto,
    stop_request_from_proto,
    stop_request_to_proto,
)
from outrider.wire.convert.sampling import (
    edits_from_proto,
    edits_to_proto,
    grammar_from_proto,
    grammar_to_proto,
    sampling_from_proto,
    sampling_to_proto,
)
from outrider.wire.convert.trees import (
    feature_from_proto,
    feature_to_proto,
    tree_from_proto,
    tree_to_proto,
)
from outrider.wire.convert.verifier import (
    cancel_from_proto,
    cancel_to_proto,
    generate_response,
    resume_from_proto,
    resume_response,
    resume_to_proto,
    session_event_from_proto,
    session_event_to_proto,
    session_request_from_proto,
    session_request_to_proto,
    verifier_info_from_proto,
    verifier_info_request,
    verifier_info_to_proto,
)

__all__ = [
    "acceptance_from_proto",
    "acceptance_to_proto",
    "cancel_from_proto",
    "cancel_to_proto",
    "command_from_proto",
    "command_to_proto",
    "drafter_info_from_proto",
    "drafter_info_request",
    "drafter_info_to_proto",
    "edits_from_proto",
    "edits_to_proto",
    "event_from_proto",
    "event_to_proto",
    "feature_from_proto",
    "feature_to_proto",
    "finish_from_proto",
    "finish_to_proto",
    "generate_response",
    "generation_event_from_proto",
    "generation_event_to_proto",
    "generation_request_from_proto",
    "generation_request_to_proto",
    "grammar_from_proto",
    "grammar_to_proto",
    "logprob_params_from_proto",
    "logprob_params_to_proto",
    "model_info_from_proto",
    "model_info_to_proto",
    "prompt_logprobs_from_proto",
    "prompt_logprobs_to_proto",
    "resume_from_proto",
    "resume_request_from_proto",
    "resume_response",
    "resume_to_proto",
    "resumed_event_to_proto",
    "sampling_from_proto",
    "sampling_to_proto",
    "session_event_from_proto",
    "session_event_to_proto",
    "session_request_from_proto",
    "session_request_to_proto",
    "speculation_from_proto",
    "speculation_to_proto",
    "stats_from_proto",
    "stats_to_proto",
    "stop_request_from_proto",
    "stop_request_to_proto",
    "tree_from_proto",
    "tree_to_proto",
    "usage_from_proto",
    "usage_to_proto",
    "verifier_info_from_proto",
    "verifier_info_request",
    "verifier_info_to_proto",
]
