"""Whether the models that a Serve configuration names can be there, and can be shared by ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from outrider.catalogue import CATALOGUE, Progress, is_fetched, resolve
from outrider.cli.stack import models_of, need_models
from outrider.config.explaining import joined, path_of
from outrider.core.errors import ConfigError, UnsupportedModelError
from outrider.rayserve.serve_file import OutriderApplication, ServeFile


def check_models(file: ServeFile) -> None:
    """Whether nodes can find them: in the catalogue, or in a folder that is called the same everywhere.

    Folders that are on this machine too are looked into.

    Raises:
        ConfigError: one that no node can find, or that ranks cannot share.
    """
    wrong = [line for one in file.ours for line in (*_unfindable(one), *_indivisible(one))]
    if wrong:
        raise ConfigError(joined(wrong, file.source))


def check_models_here(file: ServeFile, progress: Progress) -> None:
    """Fetch those of the catalogue, and check that all of them are on this machine.

    Raises:
        ConfigError: the field that names a model, and what is wrong with it.
    """
    for application in file.ours:
        if wrong := list(_unfindable(application)):
            raise ConfigError(joined(wrong, file.source))
        try:
            need_models(application.arguments.config, progress)
        except ConfigError as error:
            raise ConfigError(f"{file.source}: {_config_of(application)}.{error}") from None
    check_models(file)


def _config_of(application: OutriderApplication) -> str:
    return path_of((*application.at, "args", "config"))


def _unfindable(application: OutriderApplication) -> Iterator[str]:
    for field, (name, _) in models_of(application.arguments.config).items():
        if name not in CATALOGUE and not Path(name).is_absolute():
            yield (
                f"{_config_of(application)}.{field}: {name!r} is neither in the catalogue "
                f"({', '.join(CATALOGUE)}) nor the absolute path of a folder, the same on all nodes"
            )


def _indivisible(application: OutriderApplication) -> Iterator[str]:
    config = application.arguments.config
    ranks, model = config.verifier.tensor_parallel, config.model
    here = is_fetched(model) if model in CATALOGUE else Path(model).is_dir()
    if ranks == 1 or not here:
        return
    from transformers import AutoConfig

    from outrider.engine.parallel.sizes import check_sizes

    try:
        config = AutoConfig.from_pretrained(  # a local folder  # nosec B615
            resolve(model), local_files_only=True, trust_remote_code=False
        )
        check_sizes(config, ranks)
    except (ConfigError, UnsupportedModelError) as error:
        yield f"{_config_of(application)}: {error}"
    except (OSError, ValueError) as error:
        yield f"{_config_of(application)}.model: its config.json cannot be read: {error}"
