"""Models by name: fetched once, checked, converted, and found again."""

from outrider.catalogue.catalogue import CATALOGUE
from outrider.catalogue.fetch import fetch
from outrider.catalogue.progress import Progress
from outrider.catalogue.resolve import is_fetched, resolve

__all__ = ["CATALOGUE", "Progress", "fetch", "is_fetched", "resolve"]
