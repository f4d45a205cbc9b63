"""Messages of common.proto."""

from __future__ import annotations

import math
from collections.abc import Callable

from outrider.core import limits
from outrider.core.errors import InvalidRequestError, ProtocolError
from outrider.core.models import ModelInfo
from outrider.core.params import SamplingParams, SpeculationParams, StopParams
from outrider.core.sessions import FinishReason, SpeculationStats, Usage
from outrider.core.trees import TokenTree
from outrider.wire.convert import fields
from outrider.wire.messages import FeatureBlock, StopRequest
from outrider.wire.v1 import common_pb2 as pb

_FINISH = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
}
_FINISH_BACK = {int(value): key for key, value in _FINISH.items()}


def model_info_to_proto(info: ModelInfo) -> pb.ModelInfo:
    return pb.ModelInfo(
        model_name=info.model_name,
        tokenizer_fingerprint=info.tokenizer_fingerprint,
        vocab_size=info.vocab_size,
        context_length=info.context_length,
        dtype=info.dtype,
        hidden_size=info.hidden_size,
        num_layers=info.num_layers,
    )


def model_info_from_proto(message: pb.ModelInfo) -> ModelInfo:
    """Raises ProtocolError: a text is too long."""
    with fields.from_peer("model"):
        return ModelInfo(
            model_name=fields.text("model_name", message.model_name),
            tokenizer_fingerprint=fields.text("tokenizer_fingerprint", message.tokenizer_fingerprint),
            vocab_size=message.vocab_size,
            context_length=message.context_length,
            dtype=fields.text("dtype", message.dtype, longest=32),
            hidden_size=message.hidden_size,
            num_layers=message.num_layers,
        )


def sampling_to_proto(params: SamplingParams) -> pb.SamplingParams:
    return pb.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
    )


def sampling_from_proto(
    message: pb.SamplingParams, *, draw_seed: Callable[[], int] | None = None, field: str = "sampling"
) -> SamplingParams:
    """Unset fields take their documented defaults; an unset seed is drawn by `draw_seed`.

    Raises:
        InvalidRequestError: a number is NaN, infinite or out of its range, or the seed is unset
            and there is no `draw_seed`.
    """
    if message.HasField("seed"):
        seed = message.seed
    elif draw_seed is not None:
        seed = draw_seed()
    else:
        raise fields.fail(f"{field}.seed", "is not set")
    params = SamplingParams(
        temperature=message.temperature if message.HasField("temperature") else 1.0,
        top_k=message.top_k,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        min_p=message.min_p,
        seed=seed,
    )
    with fields.within(field):
        limits.check_sampling(params)
    return params


def stop_to_proto(stop: StopParams) -> pb.StopParams:
    """End-of-sequence ids are among the stop ids already, so `ignore_eos` is set."""
    return pb.StopParams(
        max_tokens=stop.max_tokens, stop_token_ids=sorted(stop.stop_token_ids), ignore_eos=True
    )


def stop_request_to_proto(stop: StopRequest) -> pb.StopParams:
    return pb.StopParams(
        max_tokens=stop.max_tokens,
        stop_token_ids=sorted(stop.stop_token_ids),
        stop=stop.stop,
        ignore_eos=stop.ignore_eos,
    )


def stop_request_from_proto(message: pb.StopParams, *, field: str = "stop") -> StopRequest:
    """Raises InvalidRequestError: too many stops, an empty or too long one, an id out of range."""
    ids = fields.token_ids(f"{field}.stop_token_ids", message.stop_token_ids, most=limits.MAX_STOP_TOKEN_IDS)
    with fields.within(field):
        limits.check_stop_strings(message.stop)
    max_tokens = fields.at_most(f"{field}.max_tokens", message.max_tokens, fields.MAX_TOKEN_ID)
    return StopRequest(max_tokens, frozenset(ids), tuple(message.stop), message.ignore_eos)


def speculation_to_proto(params: SpeculationParams) -> pb.SpeculationParams:
    return pb.SpeculationParams(
        enabled=params.enabled, max_draft_tokens=params.max_draft_tokens, drafter=params.drafter
    )


def speculation_from_proto(message: pb.SpeculationParams, *, field: str = "speculation") -> SpeculationParams:
    """Raises InvalidRequestError: more draft tokens than any deployment allows, or a long name."""
    params = SpeculationParams(
        enabled=message.enabled if message.HasField("enabled") else True,
        max_draft_tokens=message.max_draft_tokens if message.HasField("max_draft_tokens") else None,
        drafter=message.drafter,
    )
    with fields.within(field):
        limits.check_speculation(params)
    return params


def tree_to_proto(tree: TokenTree) -> pb.TokenTree:
    return pb.TokenTree(token_ids=tree.token_ids, parents=tree.parents)


def tree_from_proto(
    message: pb.TokenTree, *, vocab_size: int = 0, max_nodes: int = limits.MAX_DRAFT_TOKENS
) -> TokenTree:
    """A tree that `TokenTree.validate` accepts (`vocab_size` 0: any ids that fit 31 bits).

    The draft distributions of the rules "token" and "block" are checked, but not returned.

    Raises:
        ProtocolError: what is wrong, and at which node.
    """
    nodes = max(len(message.token_ids), len(message.parents), len(message.draft_probs))
    if nodes > max_nodes:
        raise ProtocolError(f"tree has {nodes} nodes, at most {max_nodes} are allowed")
    tree = TokenTree(tuple(message.token_ids), tuple(message.parents))
    tree.validate(vocab_size=vocab_size or fields.MAX_TOKEN_ID + 1, max_nodes=max_nodes)
    if message.draft_probs:
        _check_distributions(message, vocab_size)
    return tree


def _check_distributions(message: pb.TokenTree, vocab_size: int) -> None:
    if len(message.draft_probs) != len(message.token_ids):
        raise ProtocolError(
            f"tree.draft_probs has {len(message.draft_probs)} entries for {len(message.token_ids)} nodes"
        )
    for index, (token_id, entry) in enumerate(zip(message.token_ids, message.draft_probs, strict=True)):
        where = f"tree.draft_probs[{index}]"
        with fields.from_peer("proposal"):
            ids = fields.token_ids(f"{where}.token_ids", entry.token_ids, vocab_size=vocab_size)
        if len(ids) != len(entry.probs) or len(set(ids)) != len(ids):
            raise ProtocolError(f"{where} must hold one probability for each of its (different) token ids")
        if not all(0 < prob <= 1 for prob in entry.probs):
            raise ProtocolError(f"{where}.probs must all be above 0 and at most 1")
        if abs(math.fsum(entry.probs) - 1) > 1e-3:
            raise ProtocolError(f"{where}.probs sum to {math.fsum(entry.probs):.4f}, they must sum to 1")
        if token_id not in ids:
            raise ProtocolError(f"{where} gives node {index}'s own token id {token_id} no probability")


def feature_to_proto(block: FeatureBlock) -> pb.FeatureBlock:
    return pb.FeatureBlock(
        name=block.name,
        first_position=block.first_position,
        shape=(block.rows, block.columns),
        data=block.data,
    )


def feature_from_proto(message: pb.FeatureBlock) -> FeatureBlock:
    """Raises ProtocolError: not two dimensions, or not as many bytes as these say."""
    with fields.from_peer("feature"):
        name = fields.text("name", message.name)
    if len(message.shape) != 2:
        raise ProtocolError(f"feature {name!r}: shape has {len(message.shape)} dimensions, it must have 2")
    rows, columns = message.shape
    if len(message.data) != 2 * rows * columns:
        raise ProtocolError(
            f"feature {name!r}: data has {len(message.data)} bytes, {rows} x {columns} bf16 elements "
            f"are {2 * rows * columns}"
        )
    return FeatureBlock(name, message.first_position, rows, columns, message.data)


def finish_to_proto(reason: FinishReason | None) -> pb.FinishReason:
    return pb.FINISH_REASON_UNSPECIFIED if reason is None else _FINISH[reason]


def finish_from_proto(value: int, *, field: str = "reason") -> FinishReason | None:
    """None for "not finished".

    Raises:
        InvalidRequestError: a value that this version does not know.
    """
    if value == pb.FINISH_REASON_UNSPECIFIED:
        return None
    if value not in _FINISH_BACK:
        raise InvalidRequestError(f"{field} is {value}, no known finish reason", field=field)
    return _FINISH_BACK[value]


def usage_to_proto(usage: Usage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
    )


def usage_from_proto(message: pb.Usage) -> Usage:
    return Usage(message.prompt_tokens, message.completion_tokens, message.cached_prompt_tokens)


def stats_to_proto(stats: SpeculationStats) -> pb.SpeculationStats:
    return pb.SpeculationStats(
        rounds=stats.rounds,
        drafts=stats.drafts,
        draft_tokens=stats.draft_tokens,
        accepted_tokens=stats.accepted_tokens,
        run_ahead_hits=stats.run_ahead_hits,
        missed=stats.missed,
        drafter=stats.drafter,
    )


def stats_from_proto(message: pb.SpeculationStats) -> SpeculationStats:
    """Raises ProtocolError: the drafter's name is too long."""
    with fields.from_peer("speculation"):
        drafter = fields.text("drafter", message.drafter)
    return SpeculationStats(
        rounds=message.rounds,
        drafts=message.drafts,
        draft_tokens=message.draft_tokens,
        accepted_tokens=message.accepted_tokens,
        run_ahead_hits=message.run_ahead_hits,
        missed=message.missed,
        drafter=drafter,
    )
