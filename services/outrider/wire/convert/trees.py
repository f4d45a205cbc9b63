"""TokenTree and FeatureBlock: what passes between verifier and drafter."""

from __future__ import annotations

import math

from outrider.core import limits
from outrider.core.errors import ProtocolError
from outrider.core.trees import SparseProbs, TokenTree
from outrider.wire.convert import fields
from outrider.wire.messages import FeatureBlock
from outrider.wire.v1 import common_pb2 as pb

MAX_PROBS = 256
"""Most token ids in the distribution of one node: drafters truncate theirs."""
MAX_PROBS_ERROR = 1e-3
"""How far the probabilities of a node may be from a sum of 1: they are rounded to 32 bits."""

MAX_COLUMNS = 2**16
"""Elements in a row of a feature."""


def tree_to_proto(tree: TokenTree) -> pb.TokenTree:
    return pb.TokenTree(
        token_ids=tree.token_ids,
        parents=tree.parents,
        draft_probs=[
            pb.SparseDistribution(token_ids=entry.token_ids, probs=entry.probs) for entry in tree.draft_probs
        ],
        confidences=tree.confidences,
    )


def tree_from_proto(
    message: pb.TokenTree, *, vocab_size: int = 0, max_nodes: int = limits.MAX_DRAFT_TOKENS
) -> TokenTree:
    """A tree that `TokenTree.validate` accepts (`vocab_size` 0: any ids that fit 31 bits).

    Raises:
        ProtocolError: what is wrong, and at which node.
    """
    nodes = max(
        len(message.token_ids), len(message.parents), len(message.draft_probs), len(message.confidences)
    )
    if nodes > max_nodes:
        raise ProtocolError(f"tree has {nodes} nodes, at most {max_nodes} are allowed")
    tree = TokenTree(
        tuple(message.token_ids),
        tuple(message.parents),
        _distributions(message, vocab_size),
        _confidences(message),
    )
    tree.validate(vocab_size=vocab_size or limits.MAX_TOKEN_ID + 1, max_nodes=max_nodes)
    return tree


def _confidences(message: pb.TokenTree) -> tuple[float, ...]:
    """A value outside of 0 to 1 is no confidence, and NaN would make ranks a matter of chance."""
    if message.confidences and len(message.confidences) != len(message.token_ids):
        raise ProtocolError(
            f"tree.confidences has {len(message.confidences)} entries for {len(message.token_ids)} nodes"
        )
    if not all(0 <= value <= 1 for value in message.confidences):
        raise ProtocolError("tree.confidences must all be from 0 to 1")
    return tuple(message.confidences)


def _distributions(message: pb.TokenTree, vocab_size: int) -> tuple[SparseProbs, ...]:
    if not message.draft_probs:
        return ()
    if len(message.draft_probs) != len(message.token_ids):
        raise ProtocolError(
            f"tree.draft_probs has {len(message.draft_probs)} entries for {len(message.token_ids)} nodes"
        )
    return tuple(
        _distribution(index, token_id, entry, vocab_size)
        for index, (token_id, entry) in enumerate(zip(message.token_ids, message.draft_probs, strict=True))
    )


def _distribution(node: int, token_id: int, entry: pb.SparseDistribution, vocab_size: int) -> SparseProbs:
    where = f"tree.draft_probs[{node}]"
    if len(entry.token_ids) > MAX_PROBS:
        raise ProtocolError(f"{where} has {len(entry.token_ids)} token ids, at most {MAX_PROBS} are allowed")
    with fields.from_peer("proposal"):
        ids = fields.token_ids(f"{where}.token_ids", entry.token_ids, vocab_size=vocab_size)
    probs, known = tuple(entry.probs), set(ids)
    if len(ids) != len(probs) or len(known) != len(ids):
        raise ProtocolError(f"{where} must hold one probability for each of its (different) token ids")
    if not all(0 < prob <= 1 for prob in probs):
        raise ProtocolError(f"{where}.probs must all be above 0 and at most 1")
    total = math.fsum(probs)
    if abs(total - 1) > MAX_PROBS_ERROR:
        raise ProtocolError(f"{where}.probs sum to {total:.4f}, they must sum to 1")
    if token_id not in known:
        raise ProtocolError(f"{where} gives node {node}'s own token id {token_id} no probability")
    return SparseProbs(ids, probs)


def feature_to_proto(block: FeatureBlock) -> pb.FeatureBlock:
    return pb.FeatureBlock(
        name=block.name,
        first_position=block.first_position,
        shape=(block.rows, block.columns),
        data=block.data,
    )


def feature_from_proto(message: pb.FeatureBlock) -> FeatureBlock:
    """Raises ProtocolError: not two dimensions, sizes that no model has, or not as many bytes as they say."""
    with fields.from_peer("feature"):
        name = fields.text("name", message.name)
    if len(message.shape) != 2:
        raise ProtocolError(f"feature {name!r}: shape has {len(message.shape)} dimensions, it must have 2")
    rows, columns = message.shape
    with fields.from_peer(f"feature {name!r}"):
        fields.at_most("rows", rows, fields.MAX_TOKENS, least=1)
        fields.at_most("columns", columns, MAX_COLUMNS, least=1)
        fields.at_most("first_position", message.first_position, fields.MAX_TOKENS - rows)
    if len(message.data) != 2 * rows * columns:
        raise ProtocolError(
            f"feature {name!r}: data has {len(message.data)} bytes, {rows} x {columns} bf16 elements "
            f"are {2 * rows * columns}"
        )
    return FeatureBlock(name, message.first_position, rows, columns, message.data)
