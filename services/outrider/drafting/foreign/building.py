"""From the folders of a target and a draft model with different tokenizers to a drafting method."""

from __future__ import annotations

import logging
from pathlib import Path

from outrider.config.schema import DrafterConfig
from outrider.core.errors import ConfigError
from outrider.core.fingerprint import tokenizer_fingerprint
from outrider.core.models import ModelInfo
from outrider.drafting.foreign.foreign_model import ForeignModel
from outrider.drafting.foreign.shared_ids import shared_ids
from outrider.drafting.foreign.token_texts import TokenTexts
from outrider.engine.engine import Engine
from outrider.engine.loading import load_config

log = logging.getLogger(__name__)


def is_foreign(folder: Path, target: Path) -> bool:
    """Whether the draft model in `folder` has another tokenizer than `target`.

    Raises:
        ConfigError: a tokenizer cannot be read.
    """
    return tokenizer_fingerprint(folder) != tokenizer_fingerprint(target)


def build_foreign(folder: Path, target: Path, config: DrafterConfig) -> ForeignModel:
    """The draft model in `folder`, for the tokens of the model in `target`.

    Raises:
        ConfigError: a model or a tokenizer cannot be used, or the drafter is to draft trees.
        UnsupportedModelError: the draft model's architecture is not supported.
    """
    if config.tree != "chain":
        raise ConfigError(
            f"tree is {config.tree!r}, but {folder.name} has another tokenizer than the target: "
            'such drafts are chains, so it must be "chain"'
        )
    engine = Engine.load(folder, config, name=Path(config.model).name)
    info = ModelInfo(
        target.name,
        tokenizer_fingerprint=tokenizer_fingerprint(target),
        vocab_size=load_config(target).vocab_size,
    )
    theirs = TokenTexts.load(target, info.vocab_size)
    own = TokenTexts.load(folder, engine.info.vocab_size)
    shared = shared_ids(theirs, own, target_size=info.vocab_size, draft_size=engine.info.vocab_size)
    log.info(
        "%s has another tokenizer than %s: drafts are translated; %d of its %d tokens are the target's too",
        folder.name,
        target.name,
        len(shared),
        engine.info.vocab_size,
    )
    return ForeignModel(engine, info, theirs, own, shared, prefill_chunk=config.prefill_chunk)
