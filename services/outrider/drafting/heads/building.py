"""From an EAGLE checkpoint and its target's folder to a drafting method."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from outrider.config.schema import DrafterConfig
from outrider.core.features import LAST_HIDDEN, hidden_after
from outrider.drafting.growth.shape import TreeShape
from outrider.drafting.heads.eagle import Eagle
from outrider.drafting.heads.engine import HeadEngine, pool_slots
from outrider.drafting.heads.fit import check_fit
from outrider.drafting.heads.runner import HeadRunner
from outrider.drafting.heads.target import TargetModel
from outrider.drafting.heads.weights import EagleWeights
from outrider.drafting.picking.grammars import DraftGrammars
from outrider.structured import GrammarCompiler, GrammarVocabulary

log = logging.getLogger(__name__)


def build_eagle(weights: EagleWeights, target: TargetModel, config: DrafterConfig, name: str) -> Eagle:
    """The method, ready to draft.

    Args:
        weights: of the head.
        target: that it drafts for.
        config: type, device, pool, tree.
        name: of the head, for messages.

    Raises:
        ConfigError: the head does not fit the target, or the target's folder lacks what the head needs.
    """
    features = feature_names(weights, target)
    embedding = target.embedding() if weights.embedding is None else weights.embedding
    output = target.output_head() if weights.head is None else weights.head
    check_fit(weights, target.info, features=len(features), embedding=embedding, output=output, name=name)
    vocabulary, output = _ascending(weights.draft_ids, output)
    if config.threads:
        torch.set_num_threads(config.threads)
    with torch.inference_mode():
        runner = HeadRunner(
            weights,
            embedding,
            output,
            dtype=getattr(torch, config.dtype),
            device=config.device,
            slots=pool_slots(config),
            positions=target.info.context_length + 1,
        )
    row_bytes = sum(layer.shape[1] * layer.element_size() for layer in runner.store.layers)
    log.info(
        "%s (%s) drafts for %s: %d bytes of KV a token of a session",
        name,
        weights.config.kind,
        target.info.model_name,
        row_bytes,
    )
    return Eagle(
        HeadEngine(runner, config),
        replace(target.info, model_name=name, dtype=config.dtype),
        features,
        shape=TreeShape.parse(config.tree, config.tree_top_k),
        tree_nodes=config.tree_nodes,
        prefill_chunk=config.prefill_chunk,
        grammars=DraftGrammars(
            GrammarCompiler(
                lambda: GrammarVocabulary.load(
                    target.folder, vocab_size=target.info.vocab_size, eos_token_ids=target.eos_token_ids
                )
            )
        ),
        vocabulary=vocabulary,
    )


def feature_names(weights: EagleWeights, target: TargetModel) -> tuple[str, ...]:
    """The target's hidden states that the head takes, in the order in which it joins them."""
    if weights.config.kind == "eagle" and weights.entry is None:
        return (LAST_HIDDEN,)
    layers = target.info.num_layers
    chosen = weights.config.feature_layers or (2, layers // 2, layers - 3)
    return tuple(map(hidden_after, chosen))


def _ascending(
    draft_ids: torch.Tensor | None, output: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Draft vocabulary and output head in the order of the ids."""
    if draft_ids is None:
        return None, output
    ids, order = draft_ids.long().sort()
    return ids, output[order]
