"""PromQL from the declarations in `telemetry.names`: a name that does not exist cannot be written."""

from __future__ import annotations

from outrider.telemetry.names import Metric

RATE = "$__rate_interval"


class Source:
    """Samples of the models (and instances) that the reader of a dashboard has chosen."""

    def __init__(self, chosen: str) -> None:
        """`chosen`: matchers that each selector has."""
        self._chosen = chosen

    def select(self, metric: Metric | str, where: str = "", suffix: str = "") -> str:
        """One metric's samples."""
        name = metric if isinstance(metric, str) else metric.name
        matchers = ", ".join(part for part in (self._chosen, where) if part)
        return f"{name}{suffix}{{{matchers}}}"

    def rate(self, metric: Metric | str, by: str = "", where: str = "", suffix: str = "") -> str:
        """How fast a counter grows, a second."""
        return f"sum by ({by}) (rate({self.select(metric, where, suffix)}[{RATE}]))"

    def gauge(self, metric: Metric | str, by: str = "", where: str = "", how: str = "sum") -> str:
        """A gauge's value."""
        return f"{how} by ({by}) ({self.select(metric, where)})"

    def quantile(self, share: float, metric: Metric | str, by: str = "", where: str = "") -> str:
        """A quantile of a histogram."""
        labels = f"{by}, le" if by else "le"
        return f"histogram_quantile({share}, {self.rate(metric, labels, where, '_bucket')})"

    def mean(self, metric: Metric | str, by: str = "", where: str = "") -> str:
        """A histogram's mean."""
        return f"{self.rate(metric, by, where, '_sum')} / {self.rate(metric, by, where, '_count')}"

    def ratio(self, part: Metric | str, whole: Metric | str, by: str = "", where: str = "") -> str:
        """One counter's growth as a share of another's; `where` is of the part."""
        return f"{self.rate(part, by, where)} / {self.rate(whole, by)}"
