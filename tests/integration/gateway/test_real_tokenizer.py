"""The demo model's own tokenizer and template: the same ids and texts as `transformers`."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from outrider.core.errors import InvalidRequestError
from outrider.gateway.tokenizer import TextTokenizer
from outrider.wire.messages import ChatTurn, Conversation

pytestmark = pytest.mark.model

CHATS = [
    [("user", "What is the capital of France?")],
    [
        ("system", "Be brief."),
        ("user", "12 345\n\n日本語 👩‍👩‍👧 naïve"),
        ("assistant", "<|im_end|>"),
        ("user", " x "),
    ],
    [("assistant", ""), ("user", "")],
]


@pytest.fixture(scope="module")
def both(smollm2):
    return TextTokenizer.load(smollm2), AutoTokenizer.from_pretrained(smollm2)


@pytest.mark.parametrize("chat", CHATS)
async def test_chat_template(both, chat):
    ours, theirs = both
    messages = [{"role": role, "content": content} for role, content in chat]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert list(await ours.encode_chat([ChatTurn(*turn) for turn in chat])) == expected


async def test_the_template_has_no_place_for_tools(both):
    ours, _ = both
    asked = Conversation(({"role": "user", "content": "x"},), tools=({"type": "function"},), reads_calls=True)
    with pytest.raises(InvalidRequestError, match="no place for tools") as refused:
        await ours.encode_chat(asked)
    assert refused.value.field == "tools"


@pytest.mark.parametrize("text", ["hello world 12345", "", "  a\n\tb", "<|im_start|>x", "é" * 5000])
async def test_prompts(both, text):
    ours, theirs = both
    assert list(await ours.encode_prompt(text)) == theirs(text)["input_ids"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=40))
def test_texts(both, ids):
    ours, theirs = both
    detokenizer = ours.detokenizer()
    pieces = [piece for token_id in ids for piece in detokenizer.push(token_id)] + detokenizer.flush()
    assert "".join(piece.text for piece in pieces) == theirs.decode(ids, skip_special_tokens=True)
