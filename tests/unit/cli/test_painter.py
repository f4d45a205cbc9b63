"""Which characters of a stream were drafted."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from outrider.cli.painter import Painter
from outrider.gateway.delivery import Delivery
from outrider.gateway.tokenizer import TextTokenizer
from outrider.wire.messages import GenerationDelta

_LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
_BYTES = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(_LETTERS)}, merges=[]))
_BYTES.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
_BYTES.decoder = decoders.ByteLevel()
TOKENIZER = TextTokenizer(_BYTES, None, "")


def ids_of(text: str) -> list[int]:
    return list(_BYTES.encode(text).ids)


def painted(deltas: list[GenerationDelta], tokenizer: TextTokenizer | None) -> list[tuple[str, bool]]:
    painter = Painter(Console(file=io.StringIO()), tokenizer)
    return [piece for delta in deltas for piece in painter.split(delta)]


def drafted_text(pieces: list[tuple[str, bool]]) -> str:
    return "".join(text for text, drafted in pieces if drafted)


def test_drafted_tokens_come_first_in_a_round() -> None:
    delta = GenerationDelta("abc", tuple(ids_of("abc")), 2, 0)
    assert painted([delta], TOKENIZER) == [("a", True), ("b", True), ("c", False)]


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    first, second = ids_of("é")
    deltas = [GenerationDelta("", (first,), 0, 0), GenerationDelta("éx", (second, *ids_of("x")), 1, 1)]
    assert painted(deltas, TOKENIZER) == [("é", True), ("x", False)]


def test_without_a_tokenizer_the_text_still_comes() -> None:
    assert painted([GenerationDelta("abc", (1, 2), 1, 0)], None) == [("abc", False)]


@given(
    rounds=st.lists(st.tuples(st.text(min_size=1, max_size=8), st.integers(0, 8)), max_size=8),
    stop=st.sampled_from([(), ("ab",), ("a", "é")]),
)
def test_the_gateways_text_is_kept_and_each_drafted_character_found(
    rounds: list[tuple[str, int]], stop: tuple[str, ...]
) -> None:
    delivery = Delivery(TOKENIZER.detokenizer(), stop)
    deltas: list[GenerationDelta] = []
    for text, accepted in rounds:
        ids = ids_of(text)
        deltas += delivery.push(ids, min(accepted, len(ids)))
        if delivery.stopped:
            break
    deltas += delivery.finish()
    pieces = painted(deltas, TOKENIZER)
    assert "".join(text for text, _ in pieces) == "".join(delta.text for delta in deltas)
    if not stop:
        flags = [index < accepted for text, accepted in rounds for index in range(len(ids_of(text)))]
        expected, position = "", 0
        for char in "".join(text for text, _ in rounds):
            position += len(char.encode())
            expected += char if flags[position - 1] else ""
        assert drafted_text(pieces) == expected


def test_output_cannot_steer_the_terminal() -> None:
    out = io.StringIO()
    painter = Painter(Console(file=out), None)
    painter(GenerationDelta("a\x1b[2Jb[red]c[/]\n", (), 0, 0))
    assert out.getvalue() == "a\N{REPLACEMENT CHARACTER}[2Jb[red]c[/]\n"
