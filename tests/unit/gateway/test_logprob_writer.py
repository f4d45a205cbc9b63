"""Log-probabilities in OpenAI's and vLLM's shapes."""

import math

from outrider.core.params import TokenLogprobs
from outrider.gateway.openai.logprobs import LEAST, LogprobWriter, TextOffsets

BYTES = {0: b"a", 1: b" b", 2: "é".encode()[:1], 3: "é".encode()[1:], 4: b"</s>", 5: b""}


class Vocabulary:
    def token_text(self, token_id):
        return BYTES[token_id].decode(errors="replace")

    def token_bytes(self, token_id):
        return BYTES[token_id]

    def is_special(self, token_id):
        return token_id == 4


def entry(token_id, logprob=-1.0, rank=3, top=((1, -0.25), (0, -0.5))):
    return TokenLogprobs(token_id, logprob, rank, top)


def test_chat_has_bytes_and_exactly_the_alternatives_asked_for():
    body = LogprobWriter(Vocabulary()).chat([entry(2)], 1)
    assert body["content"] == [
        {
            "token": "\ufffd",
            "logprob": -1.0,
            "bytes": [0xC3],
            "top_logprobs": [{"token": " b", "logprob": -0.25, "bytes": [32, 98]}],
        }
    ]


def test_completions_tell_the_token_itself_too_and_name_parts_of_characters():
    writer = LogprobWriter(Vocabulary())
    ids = [0, 2, 3, 4, 5, 1]
    body = writer.completion(ids, [None, *map(entry, ids[1:])], 1, offsets=TextOffsets(10))
    assert body["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "</s>", "token_id:5", " b"]
    assert body["token_logprobs"][:2] == [None, -1.0]
    assert body["top_logprobs"][:2] == [None, {" b": -0.25, "bytes:\\xc3": -1.0}]
    assert body["top_logprobs"][-1] == {" b": -0.25}
    assert body["text_offset"] == [10, 11, 11, 12, 12, 12]


def test_special_tokens_that_are_shown_move_the_offsets():
    writer = LogprobWriter(Vocabulary(), skip_special_tokens=False)
    body = writer.completion([4, 0], [entry(4), entry(0)], 0, offsets=TextOffsets())
    assert body["text_offset"] == [0, 4]
    assert body["top_logprobs"] == [{"</s>": -1.0}, {"a": -1.0}]


def test_prompt_positions_have_ranks_and_the_token_once():
    first, second, third = LogprobWriter(Vocabulary()).prompt([entry(0, -0.5, 2), entry(3)], 2)
    assert first is None
    assert {token_id: told["rank"] for token_id, told in second.items()} == {"0": 2, "1": 1}
    assert {token_id: told["rank"] for token_id, told in third.items()} == {"3": 3, "1": 1, "0": 2}
    assert third["3"]["decoded_token"] == "\ufffd"


def test_minus_infinity_is_a_number_that_json_can_say():
    body = LogprobWriter(Vocabulary()).chat([entry(0, -math.inf, top=((1, -math.inf),))], 1)
    assert body["content"][0]["logprob"] == body["content"][0]["top_logprobs"][0]["logprob"] == LEAST


def test_tokens_as_ids():
    body = LogprobWriter(Vocabulary(), as_ids=True).chat([entry(0)], 1)
    assert body["content"][0]["token"] == "token_id:0"
    assert body["content"][0]["top_logprobs"][0]["token"] == "token_id:1"
