"""No token stands for more text than the bound says; where one might, there is no bound."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from outrider.gateway.token_bound import most_characters_per_token
from tests.unit.gateway.tokenizers_zoo import ALL, byte_fallback, byte_level


def changed(make, change) -> Tokenizer:
    tokenizer = copy.deepcopy(make())
    change(tokenizer)
    return tokenizer


def with_normalizer(step) -> Tokenizer:
    return changed(byte_level, lambda tokenizer: setattr(tokenizer, "normalizer", step))


BOUND = [
    byte_level(),
    byte_fallback(),
    with_normalizer(normalizers.NFC()),
    with_normalizer(normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "__")])),
]


@pytest.mark.parametrize("tokenizer", BOUND)
@given(
    text=st.text(max_size=60)
    | st.text("the quick.\u03b1\u0313\u0300\u0345\u1161\u1100\u11a8 <s>", max_size=60)
)
def test_the_bound_holds(tokenizer: Tokenizer, text: str) -> None:
    most = most_characters_per_token(tokenizer)
    assert most > 0
    assert len(text) <= most * len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("tokenizer", BOUND)
def test_the_bound_holds_for_the_longest_tokens(tokenizer: Tokenizer) -> None:
    most = most_characters_per_token(tokenizer)
    for token_id in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token_id], skip_special_tokens=False) * 20
        assert len(text) <= most * len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("make", [make for make in ALL if make not in (byte_level, byte_fallback)])
def test_others_have_no_bound(make) -> None:
    assert most_characters_per_token(make()) == 0


@pytest.mark.parametrize(
    "tokenizer",
    [
        with_normalizer(normalizers.Strip()),
        with_normalizer(normalizers.NFKC()),
        with_normalizer(normalizers.Replace(Regex(" +"), " ")),
        with_normalizer(normalizers.Replace("  ", " ")),
        changed(byte_level, lambda t: t.add_tokens([AddedToken("<mask>", lstrip=True)])),
        changed(byte_level, lambda t: t.add_tokens([AddedToken("<mask>", rstrip=True)])),
        changed(byte_fallback, lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.WhitespaceSplit())),
        changed(
            byte_fallback,
            lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.Split(Regex(r"\\s+"), "removed")),
        ),
    ],
)
def test_what_drops_text_has_no_bound(tokenizer: Tokenizer) -> None:
    assert most_characters_per_token(tokenizer) == 0
