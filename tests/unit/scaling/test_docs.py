"""docs/scaling.md lists every setting with its default and its meaning, and every reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from outrider.scaling import Why
from outrider.scaling.settings import DrafterScaling, ScalingSettings, VerifierScaling, WorthSettings
from outrider.telemetry.names import SCALING_METRICS

PAGE = (Path(__file__).parents[3] / "docs" / "scaling.md").read_text("utf-8")
SECTIONS: dict[str, type[BaseModel]] = {
    "": ScalingSettings,
    "verifier.": VerifierScaling,
    "drafter.": DrafterScaling,
    "worth.": WorthSettings,
}


def settings() -> Iterator[tuple[str, str, str | None]]:
    for prefix, kind in SECTIONS.items():
        for name, field in kind.model_fields.items():
            default = field.get_default(call_default_factory=True)
            if isinstance(default, bool):
                yield prefix + name, str(default).lower(), field.description
            elif default is None or isinstance(default, int | float):
                yield prefix + name, "" if default is None else f"{default:g}", field.description


def test_every_setting_is_listed() -> None:
    table = PAGE.partition("## Settings")[2].partition("## In the log")[0]
    assert re.findall(r"^\| `([\w.]+)` \| (\S*) ?\| (.+) \|$", table, re.MULTILINE) == list(settings())


def test_every_reason_is_explained() -> None:
    table = PAGE.partition("| reason | |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == {why.value for why in Why}


def test_every_metric_is_named() -> None:
    assert set(re.findall(r"`ray_(outrider_scaling_\w+)`", PAGE)) == {one.name for one in SCALING_METRICS}
