"""From a drafter's configuration to its drafting method."""

from __future__ import annotations

import logging
from pathlib import Path

from outrider.config.schema import DrafterConfig
from outrider.core.errors import ConfigError
from outrider.drafting.growth.shape import TreeShape
from outrider.drafting.lookup.prompt_lookup import prompt_lookup
from outrider.drafting.lookup.suffix import suffix_decoding
from outrider.drafting.method import DraftingMethod

log = logging.getLogger(__name__)

LOOKUP_TOKENS = 1_048_576
"""Tokens that prompt lookup indexes over all sessions: 100 to 500 MB."""


def build_method(config: DrafterConfig, target: str) -> DraftingMethod:
    """The method that `config` asks for, with its model loaded.

    `target` is the model that it drafts for (catalogue name or folder): heads take its embeddings and
    output head.

    Raises:
        ConfigError: the model, or a value of the configuration, cannot be used.
        UnsupportedModelError: the model's architecture is not supported.
    """
    match config.method:
        case "prompt_lookup":
            return _prompt_lookup(config)
        case "suffix":
            return _suffix(config)
        case "medusa":
            return _medusa(config, target)
        case "eagle":
            return _eagle(config, target)
        case "draft_model":
            return _draft_model(config, target)


def _prompt_lookup(config: DrafterConfig) -> DraftingMethod:
    shortest, longest = config.ngram_min, config.ngram_max
    if shortest > longest:
        raise ConfigError(f"ngram_min is {shortest}, it must be at most ngram_max, which is {longest}")
    return prompt_lookup(
        ngram_min=shortest,
        ngram_max=longest,
        max_tokens=LOOKUP_TOKENS,
        shape=TreeShape.parse(config.tree, config.tree_top_k),
        tree_nodes=config.tree_nodes,
    )


def _suffix(config: DrafterConfig) -> DraftingMethod:
    return suffix_decoding(
        max_tokens=config.suffix_tokens,
        share=config.suffix_shared,
        shape=TreeShape.parse(config.tree, config.tree_top_k),
        tree_nodes=config.tree_nodes,
    )


def _medusa(config: DrafterConfig, target: str) -> DraftingMethod:
    if not config.model:
        raise ConfigError("a drafter with method medusa needs a model: a catalogue name or a folder of heads")
    from outrider import catalogue
    from outrider.drafting.heads.checkpoints import load_medusa
    from outrider.drafting.heads.medusa_building import build_medusa
    from outrider.drafting.heads.target import describe_target

    weights = load_medusa(catalogue.resolve(config.model, head=True))
    name = Path(config.model).name
    return build_medusa(weights, describe_target(catalogue.resolve(target), Path(target).name), config, name)


def _eagle(config: DrafterConfig, target: str) -> DraftingMethod:
    if not config.model:
        raise ConfigError("a drafter with method eagle needs a model: a catalogue name or a folder of a head")
    from outrider import catalogue
    from outrider.drafting.heads.building import build_eagle
    from outrider.drafting.heads.checkpoints import load_eagle
    from outrider.drafting.heads.target import describe_target

    weights = load_eagle(catalogue.resolve(config.model, head=True))
    name = Path(config.model).name
    return build_eagle(weights, describe_target(catalogue.resolve(target), Path(target).name), config, name)


def _draft_model(config: DrafterConfig, target: str) -> DraftingMethod:
    if not config.model:
        raise ConfigError("a drafter with method draft_model needs a model: a catalogue name or a folder")
    # Imported here because a drafter without a model needs no torch, which takes seconds to load.
    from outrider import catalogue
    from outrider.drafting.foreign.building import build_foreign, is_foreign
    from outrider.drafting.model.draft_model import DraftModel
    from outrider.drafting.picking.grammars import DraftGrammars
    from outrider.drafting.picking.vocabulary import load_vocabulary
    from outrider.engine.engine import Engine
    from outrider.structured import GrammarCompiler, GrammarVocabulary

    folder = catalogue.resolve(config.model)
    target_folder = _folder_of(target)
    if target_folder is not None and is_foreign(folder, target_folder):
        return build_foreign(folder, target_folder, config)
    vocabulary = load_vocabulary(folder)
    engine = Engine.load(folder, config, name=Path(config.model).name, head_rows=vocabulary)
    # A reduced head leaves out ids, but masks are by id.
    size = engine.info.vocab_size if vocabulary is None else int(vocabulary[-1]) + 1
    compiler = GrammarCompiler(
        lambda: GrammarVocabulary.load(folder, vocab_size=size, eos_token_ids=engine.eos_token_ids)
    )
    return DraftModel(
        engine,
        prefill_chunk=config.prefill_chunk,
        grammars=DraftGrammars(compiler),
        vocabulary=vocabulary,
        shape=TreeShape.parse(config.tree, config.tree_top_k),
        tree_nodes=config.tree_nodes,
    )


def _folder_of(target: str) -> Path | None:
    """The target's folder; None if it is not here: the verifier checks that the tokenizers are the same."""
    from outrider import catalogue

    try:
        return catalogue.resolve(target)
    except ConfigError:
        log.info("the target %s is not on this machine: its tokenizer must be the draft model's", target)
        return None
