"""`outrider train` from nothing to a drafter that is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from outrider.core.errors import ConfigError
from outrider.training.cli import app
from outrider.training.data.shards import open_shards
from tests.tiny_models import make_tiny

ROW = {"dtype": "float32", "threads": "1"}


def train(*arguments: str) -> None:
    """Run the command; what it raises comes out."""
    CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def options(**values: str) -> list[str]:
    pairs = ((f"--{name.replace('_', '-')}", value) for name, value in (ROW | values).items())
    return [part for pair in pairs for part in pair]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("target") / "tiny", layers=8)


@pytest.fixture(scope="module")
def data(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "own"
    size = {"tokens": "300", "batch": "4", "shard_size": "6", "answer_tokens": "24", "context": "128"}
    train("data", *options(target=str(target), out=str(folder), **size))
    return folder


@pytest.fixture(scope="module")
def texts(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers to prompts, half of them greedy."""
    folder = tmp_path_factory.mktemp("texts")
    prompts = folder / "prompts.jsonl"
    kinds = ("qa", "code")
    lines = [json.dumps({"category": kinds[n % 2], "turns": [f"What is number {n}?"]}) for n in range(8)]
    prompts.write_text("\n".join(lines))
    size = {"batch": "8", "answer_tokens": "24", "context": "128", "temperatures": "0:1,1:1"}
    train("data", *options(target=str(target), out=str(folder / "own"), prompts=str(prompts), **size))
    return folder / "own"


@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa", "draft_model"])
def test_from_data_to_figures(method: str, target: Path, data: Path, texts: Path, tmp_path: Path) -> None:
    common = {"target": str(target), "data": str(data), "columns": "128", "batch_tokens": "300"}
    run = options(out=str(tmp_path / "run"), steps="6", measure_every="3", unroll="2", **common)
    train("run", method, *run)
    drafter = tmp_path / "run" / "drafter"
    if method == "draft_model":
        complete(drafter, target)
    figures = tmp_path / "figures.jsonl"
    kind = "eagle" if method == "eagle3" else method
    train(
        "evaluate",
        *options(target=str(target), data=str(texts), method=kind, model=str(drafter), json=str(figures)),
    )
    rows = {row["category"]: row for row in map(json.loads, figures.read_text().splitlines())}
    assert set(rows) == {"qa", "code", "all"}
    assert rows["all"]["tokens"] == answered(texts)
    assert rows["all"]["rounds"] <= rows["all"]["tokens"]
    assert rows["all"]["drafted"] > 0
    assert (tmp_path / "run" / "curve.png").exists()


def complete(drafter: Path, target: Path) -> None:
    """A draft model's folder needs the target's embeddings, head and tokenizer beside it."""
    from safetensors.torch import load_file

    whole = load_file(target / "model.safetensors")
    own = load_file(drafter / "model.safetensors")
    shared = {name: whole[name] for name in ("model.embed_tokens.weight", "lm_head.weight")}
    save_file(own | shared, drafter / "model.safetensors", metadata={"format": "pt"})
    for path in target.iterdir():
        if "token" in path.name or path.suffix == ".jinja":
            (drafter / path.name).write_bytes(path.read_bytes())


def answered(folder: Path) -> int:
    """Tokens of last answers but their first ones, which come with the prefill."""
    shards = open_shards([folder])
    return sum(len(shard.answer(index)) - 1 for shard in shards for index in range(len(shard)))


def test_a_run_goes_on_from_weights(target: Path, data: Path, tmp_path: Path) -> None:
    common = {"target": str(target), "data": str(data), "batch_tokens": "300", "steps": "2"}
    train("run", "eagle", *options(out=str(tmp_path / "one"), columns="128", **common))
    first = str(tmp_path / "one" / "drafter")
    train("run", "eagle", *options(out=str(tmp_path / "two"), start=first, rate="0", **common))
    weights = [(tmp_path / name / "drafter" / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert weights[0] == weights[1]
    with pytest.raises(ConfigError, match="weights of this method"):
        train("run", "medusa", *options(out=str(tmp_path / "three"), start=first, **common))


def test_faults_of_the_command_line_are_named(target: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="temperatures"):
        train("data", *options(target=str(target), out=str(tmp_path), temperatures="hot"))
    with pytest.raises(ConfigError, match="no training data"):
        train("run", "eagle", *options(target=str(target), data=str(tmp_path), out=str(tmp_path / "run")))
    ids = tmp_path / "ids.safetensors"
    save_file({"draft_vocabulary": torch.tensor([5, 100_000])}, ids)
    with pytest.raises(ConfigError, match="draft vocabulary must hold ids"):
        train(
            "run",
            "eagle",
            *options(target=str(target), data=str(data), out=str(tmp_path / "run"), vocabulary=str(ids)),
        )
