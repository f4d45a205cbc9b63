"""From what a configuration calls a model to the folder that holds it."""

from __future__ import annotations

from pathlib import Path

from outrider.catalogue.cache import is_complete, model_folder
from outrider.catalogue.catalogue import CATALOGUE
from outrider.core.errors import ConfigError


def is_fetched(name: str) -> bool:
    """True if the catalogue's model `name` lies in the cache."""
    return is_complete(name, CATALOGUE[name].sha256)


def resolve(name_or_path: str, *, head: bool = False) -> Path:
    """The local folder of a model: config.json, safetensors, tokenizer files. Never fetches.

    Args:
        name_or_path: a name in the catalogue, or a folder. A folder that is called like a name
            in the catalogue is meant by `./name`.
        head: a draft head is meant: it needs no tokenizer, and may be pickled, as many are published.

    Raises:
        ConfigError: not fetched yet, no such model, or not a model in safetensors.
    """
    if name_or_path in CATALOGUE:
        if not is_fetched(name_or_path):
            raise ConfigError(
                f"model {name_or_path!r} is not in the cache yet: run `outrider models fetch {name_or_path}`"
            )
        return model_folder(name_or_path)
    folder = Path(name_or_path).expanduser()
    if not name_or_path or not folder.is_dir():
        raise ConfigError(
            f"there is no model {name_or_path!r}: neither a folder nor a name in the catalogue "
            f"({', '.join(CATALOGUE)})"
        )
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is not a model folder: config.json is missing")
    if not any(folder.glob("*.safetensors")) and not (head and _has_pickled(folder)):
        raise ConfigError(
            f"{folder} holds no safetensors files, the only weight format that is loaded"
            + (" beside *.bin and *.pt" if head else "")
        )
    return folder


def _has_pickled(folder: Path) -> bool:
    return any(path.suffix in (".bin", ".pt") for path in folder.iterdir())
