"""The real demo models, as the catalogue makes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.core.fingerprint import tokenizer_fingerprint


@pytest.mark.model
def test_target_and_draft_share_tokenizer_and_embeddings(smollm2: Path, draft_3l: Path) -> None:
    import torch
    from safetensors import safe_open

    assert tokenizer_fingerprint(smollm2) == tokenizer_fingerprint(draft_3l)
    name = "model.embed_tokens.weight"
    with (
        safe_open(smollm2 / "model.safetensors", "pt") as target,
        safe_open(draft_3l / "model.safetensors", "pt") as draft,
        safe_open(draft_3l / "draft_vocabulary.safetensors", "pt") as vocabulary,
    ):
        ids = vocabulary.get_tensor("draft_vocabulary")
        embeddings = target.get_tensor(name)
        assert embeddings.dtype == torch.bfloat16
        assert torch.equal(embeddings, draft.get_tensor(name))
        layers = json.loads((draft_3l / "config.json").read_text())["num_hidden_layers"]
        assert len([key for key in draft.keys() if "q_proj" in key]) == layers == 3  # noqa: SIM118
    assert len(set(ids.tolist())) == len(ids) == 8192
    assert int(ids.min()) >= 0
    assert int(ids.max()) < embeddings.shape[0]


@pytest.mark.model
def test_the_target_has_chat_template_and_end_token(smollm2: Path) -> None:
    config = json.loads((smollm2 / "config.json").read_text())
    assert config["eos_token_id"] == 2
    assert "add_generation_prompt" in (smollm2 / "chat_template.jinja").read_text()
