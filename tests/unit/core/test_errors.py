"""The exception tree and its one table."""

from __future__ import annotations

import re
from collections.abc import Iterator

import grpc
import pytest

from outrider.core import errors
from outrider.core.errors import InternalError, InvalidRequestError, OutriderError, describe


def kinds(root: type[OutriderError] = OutriderError) -> Iterator[type[OutriderError]]:
    for kind in root.__subclasses__():
        yield kind
        yield from kinds(kind)


ALL = sorted({kind for kind in kinds() if kind.__module__ == errors.__name__}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", ALL)
def test_every_kind_has_a_row_of_its_own(kind: type[OutriderError]) -> None:
    row = describe(kind("text"))
    assert errors._TABLE[kind] is row
    assert hasattr(grpc.StatusCode, row.grpc_code)
    assert 400 <= row.http_status < 600
    assert re.fullmatch(r"[a-z_]+", row.label)


def test_labels_tell_kinds_apart() -> None:
    """`wire` finds the class from the label again."""
    labels = [describe(kind("text")).label for kind in ALL]
    assert len(set(labels)) == len(labels)


def test_the_documented_tree_is_the_tree() -> None:
    parents = ["OutriderError"]
    documented = {}
    for indent, name in re.findall(r"^([│ ]*)[├└]── (\w+)", errors.__doc__ or "", flags=re.MULTILINE):
        depth = len(indent) // 4
        parents[depth + 1 :] = [name]
        documented[name] = parents[depth]
    assert documented == {kind.__name__: kind.__bases__[0].__name__ for kind in ALL}


def test_a_subclass_takes_its_bases_row() -> None:
    class Special(errors.StoreUnavailableError):
        pass

    assert describe(Special("x")).label == "store_unavailable"


@pytest.mark.parametrize("error", [ValueError("x"), OutriderError("x"), KeyboardInterrupt()])
def test_anything_else_is_a_defect(error: BaseException) -> None:
    assert describe(error) == describe(InternalError("x"))
    assert describe(error).http_status == 500


def test_extras() -> None:
    assert InvalidRequestError("x", field="top_p").field == "top_p"
    assert InvalidRequestError("x").field is None
    assert errors.OverloadedError("x", retry_after_s=2.5).retry_after_s == 2.5
    assert errors.OverloadedError("x").retry_after_s > 0
