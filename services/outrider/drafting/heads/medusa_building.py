"""From a Medusa checkpoint and its target's folder to a drafting method."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from outrider.config.schema import DrafterConfig
from outrider.core.errors import ConfigError
from outrider.core.models import ModelInfo
from outrider.drafting.growth.shape import TreeShape
from outrider.drafting.heads.medusa import Medusa
from outrider.drafting.heads.medusa_runner import MedusaRunner
from outrider.drafting.heads.medusa_weights import MedusaWeights
from outrider.drafting.heads.target import TargetModel
from outrider.drafting.picking.grammars import DraftGrammars
from outrider.structured import GrammarCompiler, GrammarVocabulary

log = logging.getLogger(__name__)


def build_medusa(weights: MedusaWeights, target: TargetModel, config: DrafterConfig, name: str) -> Medusa:
    """The method, ready to draft.

    Args:
        weights: of the heads.
        target: that they draft for.
        config: type, device, tree.
        name: of the heads, for messages.

    Raises:
        ConfigError: the heads do not fit the target, or the target's folder lacks what they need.
    """
    fault = _misfit(weights, target.info)
    if fault:
        raise ConfigError(f"head {name} does not fit target {target.info.model_name}: {fault}")
    outputs = weights.outputs or _of_target(weights, target)
    if config.threads:
        torch.set_num_threads(config.threads)
    runner = MedusaRunner(weights, outputs, dtype=getattr(torch, config.dtype), device=config.device)
    if config.batch_invariance != "off":
        runner.calibrate()
    log.info(
        "%s: %d heads over %d ids draft for %s",
        name,
        runner.heads,
        runner.columns,
        target.info.model_name,
    )
    return Medusa(
        runner,
        replace(target.info, model_name=name, dtype=config.dtype),
        shape=TreeShape.parse(config.tree, config.tree_top_k),
        tree_nodes=config.tree_nodes,
        grammars=DraftGrammars(
            GrammarCompiler(
                lambda: GrammarVocabulary.load(
                    target.folder, vocab_size=target.info.vocab_size, eos_token_ids=target.eos_token_ids
                )
            )
        ),
        vocabulary=weights.draft_ids,
    )


def _misfit(weights: MedusaWeights, target: ModelInfo) -> str:
    """What differs; empty: nothing."""
    if weights.hidden_size != target.hidden_size:
        theirs = target.hidden_size
        return f"it takes hidden states of {weights.hidden_size} elements, the target's have {theirs}"
    size = target.vocab_size
    if weights.vocab_size and weights.vocab_size != size:
        return f"its vocabulary has {weights.vocab_size} ids, the target's {size}"
    ids = weights.draft_ids
    if ids is not None:
        return "" if int(ids[-1]) < size else f"its draft ids go up to {int(ids[-1])}, there are {size} ids"
    if weights.outputs and len(weights.outputs[0]) != size:
        return f"its output heads have {len(weights.outputs[0])} rows, there are {size} ids"
    return ""


def _of_target(weights: MedusaWeights, target: TargetModel) -> tuple[torch.Tensor, ...]:
    """The target's own output head, or its rows for the draft vocabulary."""
    output = target.output_head()
    rows = target.info.vocab_size
    if output.ndim != 2 or output.shape[1] != weights.hidden_size or len(output) < rows:
        raise ConfigError(
            f"the output head of {target.info.model_name} has shape {tuple(output.shape)}, "
            f"at least {rows} x {weights.hidden_size} are needed"
        )
    return (output[:rows] if weights.draft_ids is None else output[weights.draft_ids],)
