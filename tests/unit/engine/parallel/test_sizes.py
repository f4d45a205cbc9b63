"""How many ranks may share a model is known, and said, before any weight is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from outrider.config.schema import VerifierConfig
from outrider.core.errors import ConfigError, UnsupportedModelError
from outrider.engine.parallel.opening import open_engine
from outrider.engine.parallel.sizes import check_sizes, valid_sizes
from tests.threaded_ranks import ThreadedRanks

SMOLLM2_360M = {
    "num_attention_heads": 15,
    "num_key_value_heads": 5,
    "hidden_size": 960,
    "intermediate_size": 2560,
}


def config_of(kind: str = "llama", **sizes: Any) -> Any:
    """As SmolLM2-135M, where nothing else is said."""
    shape = {
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "vocab_size": 49152,
    }
    return transformers.AutoConfig.for_model(kind, **shape | sizes)


def test_the_demo_model_has_one_rank_or_three() -> None:
    assert valid_sizes(config_of()) == [1, 3]
    check_sizes(config_of(), 3)
    with pytest.raises(ConfigError) as caught:
        check_sizes(config_of(), 2)
    assert str(caught.value) == (
        "verifier.tensor_parallel is 2, which does not divide the model's 9 attention heads and 3 key-value "
        "heads; valid: 1, 3"
    )


@pytest.mark.parametrize(
    ("sizes", "valid"),
    [
        ({"num_attention_heads": 32, "num_key_value_heads": 8}, [1, 2, 4, 8]),
        ({**SMOLLM2_360M}, [1]),
        ({**SMOLLM2_360M, "vocab_size": 49150}, [1, 5]),
        ({"num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 1538}, [1, 2]),
        ({"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 49151}, [1]),
    ],
)
def test_every_part_must_divide(sizes: dict[str, int], valid: list[int]) -> None:
    assert valid_sizes(config_of(**sizes)) == valid
    for count in range(1, 12):
        if count in valid:
            check_sizes(config_of(**sizes), count)
        else:
            with pytest.raises(ConfigError, match=r"verifier\.tensor_parallel is"):
                check_sizes(config_of(**sizes), count)


def test_other_architectures_are_refused_by_name() -> None:
    config = transformers.AutoConfig.for_model("gemma2")
    with pytest.raises(UnsupportedModelError, match=r"'gemma2'.*llama, mistral, qwen2, qwen3"):
        check_sizes(config, 2)


def test_a_model_that_does_not_divide_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    config_of().save_pretrained(tmp_path)  # and there are no weights
    config = VerifierConfig(tensor_parallel=2)
    with pytest.raises(ConfigError, match="9 attention heads"):
        open_engine(tmp_path, config, launcher=ThreadedRanks())


def test_ranks_need_somebody_who_starts_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing here can start other ranks"):
        open_engine(tmp_path, VerifierConfig(tensor_parallel=2))
