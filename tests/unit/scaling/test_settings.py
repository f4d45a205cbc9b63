"""Settings: every one is described, and what is wrong is named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import BaseModel, ValidationError

from outrider.scaling.settings import DrafterScaling, ScalingSettings


def test_defaults_are_valid() -> None:
    assert ScalingSettings.model_validate({}) == ScalingSettings()


def test_a_kind_has_its_own_or_the_defaults() -> None:
    settings = ScalingSettings.model_validate(
        {"drafter": {"price": 0.5}, "drafters": {"lookup": {"price": 0.1}}}
    )
    assert settings.of_drafter("lookup").price == 0.1
    assert settings.of_drafter("eagle").price == 0.5


@pytest.mark.parametrize(
    ("given", "where", "what"),
    [
        ({"prices": {}}, ("prices",), "Extra inputs are not permitted"),
        ({"verifier": {"price": 0}}, ("verifier", "price"), "greater than 0"),
        ({"drafters": {"a": {"price": -1}}}, ("drafters", "a", "price"), "greater than or equal to 0"),
        ({"drafter": {"max_late": 1}}, ("drafter", "max_late"), "less than 1"),
        ({"verifier": {"target_use": float("nan")}}, ("verifier", "target_use"), "finite number"),
        ({"worth": {"retry_s": 9, "max_retry_s": 8}}, ("worth",), "max_retry_s (8) is below retry_s (9)"),
        ({"interval_s": 9}, (), "load_window_s (5) is below interval_s (9)"),
        ({"worth": {"window_s": 0.5}}, (), "worth.window_s (0.5) is below interval_s (1)"),
    ],
)
def test_what_is_wrong_is_named(given: object, where: tuple[str, ...], what: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ScalingSettings.model_validate(given)
    (error,) = caught.value.errors()
    assert error["loc"] == where
    assert what in error["msg"]


def fields(kind: type[BaseModel]) -> Iterator[tuple[str, str | None]]:
    for name, field in kind.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel) and inner is not DrafterScaling:
            yield from ((f"{name}.{below}", text) for below, text in fields(inner))
        else:
            yield name, field.description


@pytest.mark.parametrize(("name", "text"), [*fields(ScalingSettings), *fields(DrafterScaling)])
def test_every_setting_is_described(name: str, text: str | None) -> None:
    assert text, name
