"""From a name to a folder, or to what to do about it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.catalogue import CATALOGUE, fetch, is_fetched, resolve
from outrider.catalogue.cache import building, is_complete, model_folder
from outrider.catalogue.catalogue import DraftHead, DraftModel
from outrider.core.errors import ConfigError, UnavailableError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def a_model(folder: Path, weights: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / weights).write_bytes(b"x")
    return folder


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert resolve(str(a_model(tmp_path / "m"))) == tmp_path / "m"


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_name_that_is_not_fetched_says_how(name: str) -> None:
    with pytest.raises(ConfigError, match=f"outrider models fetch {name}"):
        resolve(name)
    assert not is_fetched(name)


def test_a_name_that_is_fetched_is_its_folder() -> None:
    entry = CATALOGUE["smollm2-135m-instruct"]
    with building(entry.name, entry.sha256, entry.source) as folder:
        a_model(folder)
        assert not is_fetched(entry.name)
    assert resolve(entry.name) == model_folder(entry.name)
    assert is_complete(entry.name, entry.sha256)
    assert not is_complete(entry.name, "another source")


def test_a_failed_build_leaves_nothing(cache: Path) -> None:
    with pytest.raises(RuntimeError), building("m", "hash", "source") as folder:
        a_model(folder)
        raise RuntimeError
    assert not model_folder("m").exists()
    assert list((cache / "partial").iterdir()) == []


@pytest.mark.parametrize(
    "manifest", ["", "[]", "{}", '{"format": 1, "sha256": "hash", "files": {"absent": 1}}']
)
def test_a_bad_manifest_is_no_model(manifest: str) -> None:
    a_model(model_folder("m"))
    (model_folder("m") / "outrider.json").write_text(manifest)
    assert not is_complete("m", "hash")


def test_what_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    for name in ("", "smollm2-135m-instuct", str(tmp_path / "absent")):
        with pytest.raises(ConfigError, match="smollm2-135m-instruct"):
            resolve(name)
    with pytest.raises(ConfigError, match=r"config\.json"):
        resolve(str(tmp_path))
    with pytest.raises(ConfigError, match="safetensors"):
        resolve(str(a_model(tmp_path / "pickled", "pytorch_model.bin")))


def test_fetching_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="smollm2-135m-draft-3l"):
        fetch("nope")


def test_packaged_drafts_are_whole() -> None:
    for entry in CATALOGUE.values():
        if isinstance(entry, DraftModel):
            names = {path.name for path in entry.folder.iterdir()}
            assert {"README.md", "config.json", "layers.safetensors", "draft_vocabulary.safetensors"} <= names


def test_heads_may_be_pickled(tmp_path: Path) -> None:
    folder = a_model(tmp_path / "head", "pytorch_model.bin")
    assert resolve(str(folder), head=True) == folder
    with pytest.raises(ConfigError, match=r"beside \*\.bin and \*\.pt"):
        resolve(str(a_model(tmp_path / "other", "model.gguf")), head=True)


def test_packaged_heads_are_checked_and_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_model(tmp_path / "assets" / "h")
    content = (folder / "model.safetensors").read_bytes()
    head = DraftHead("h", "a head", "Apache-2.0", "m", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr("outrider.catalogue.catalogue.ASSETS", tmp_path / "assets")
    monkeypatch.setitem(CATALOGUE, "h", head)
    with pytest.raises(ConfigError, match="not in the cache"):
        resolve("h", head=True)
    assert fetch("h") == model_folder("h") == resolve("h", head=True)
    assert (model_folder("h") / "config.json").is_file()
    monkeypatch.setitem(CATALOGUE, "h", replace(head, sha256="0" * 64))
    with pytest.raises(UnavailableError):
        fetch("h")
