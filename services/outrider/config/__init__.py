"""The typed configuration and how it is read."""

from outrider.config.loader import dump_config, load_config
from outrider.config.schema import OutriderConfig
from outrider.config.secrets import without_secrets

__all__ = ["OutriderConfig", "dump_config", "load_config", "without_secrets"]
