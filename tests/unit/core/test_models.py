"""Which drafter may work with which target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.core.errors import ModelMismatchError
from outrider.core.models import PROTOCOL_VERSION, DrafterInfo, ModelInfo, check_pairing, check_protocol

TARGET = ModelInfo("big", tokenizer_fingerprint="a" * 64, vocab_size=49152, hidden_size=576)
DRAFTER = DrafterInfo(
    model=replace(TARGET, model_name="small", hidden_size=64),
    method="draft_model",
    features=(),
    max_draft_tokens=8,
    max_sessions=4,
    instance_id="i",
)
LAST_HIDDEN = frozenset({"last_hidden"})


def test_one_tokenizer_is_enough() -> None:
    check_pairing(TARGET, DRAFTER, frozenset())


def test_a_padded_vocabulary_is_accepted() -> None:
    padded = replace(DRAFTER, model=replace(DRAFTER.model, vocab_size=49280))
    check_pairing(TARGET, padded, frozenset())


def test_a_drafter_without_model_works_on_ids_of_any_tokenizer() -> None:
    check_pairing(TARGET, replace(DRAFTER, model=ModelInfo("lookup")), frozenset())


def test_another_tokenizer_is_refused() -> None:
    other = replace(DRAFTER, model=replace(DRAFTER.model, tokenizer_fingerprint="b" * 64))
    with pytest.raises(ModelMismatchError, match=r"bbbbbbbbbbbb.*big.*aaaaaaaaaaaa"):
        check_pairing(TARGET, other, frozenset())


def test_missing_features_are_named() -> None:
    asking = replace(DRAFTER, features=("last_hidden", "low"))
    with pytest.raises(ModelMismatchError, match=r"needs features \['low'\]"):
        check_pairing(TARGET, asking, LAST_HIDDEN)


def test_hidden_states_must_have_the_width_that_the_drafter_takes() -> None:
    asking = replace(DRAFTER, features=("last_hidden",))
    with pytest.raises(ModelMismatchError, match=r"64 elements, target big has 576"):
        check_pairing(TARGET, asking, LAST_HIDDEN)
    check_pairing(TARGET, replace(asking, model=replace(asking.model, hidden_size=576)), LAST_HIDDEN)


def test_heads_of_a_target_of_another_depth_are_refused() -> None:
    model = replace(TARGET, num_layers=TARGET.num_layers + 1)
    head = replace(DRAFTER, model=model, features=("last_hidden",))
    with pytest.raises(ModelMismatchError, match=rf"{model.num_layers} layers.*{TARGET.num_layers}"):
        check_pairing(TARGET, head, LAST_HIDDEN)
    check_pairing(TARGET, replace(head, model=TARGET), LAST_HIDDEN)


def test_another_protocol_is_refused() -> None:
    check_protocol(PROTOCOL_VERSION, "somebody")
    with pytest.raises(ModelMismatchError, match="somebody speaks protocol version 9, this service speaks"):
        check_protocol(9, "somebody")
    with pytest.raises(ModelMismatchError, match="protocol version 9"):
        check_pairing(TARGET, replace(DRAFTER, protocol_version=9), frozenset())
