"""Several answers to one prompt, echoes and log-probabilities, over a real verifier with real drafters."""

import asyncio

import pytest
import pytest_asyncio

from tests.integration.gateway.real_stack import real_stack
from tests.integration.gateway.test_chat import events_of
from tests.tiny_models import make_tiny

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = "The quick brown fox jumps over the lazy dog"
ASKED = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0.9, "seed": 11, "ignore_eos": True}
CHAT = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 10,
    "temperature": 0.8,
    "seed": 2**64 - 1,
    "ignore_eos": True,
}
OFF = {"speculation": {"enabled": False}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory):
    folder = make_tiny("llama", tmp_path_factory.mktemp("tiny") / "model")
    drafters = {"twin": {"method": "draft_model"}, "lookup": {"method": "prompt_lookup"}}
    async with real_stack(folder, drafters=drafters) as client:
        yield client


async def ask(client, body, path="/v1/completions", **fields):
    response = await client.post(path, json=body | {"return_token_ids": True} | fields)
    assert response.status_code == 200, response.text
    return response.json()


async def streamed(client, body, path="/v1/completions", **fields):
    """Events of a stream by choice, and those without a choice."""
    events = await events_of(client, body | {"return_token_ids": True} | fields, path)
    by_choice, others = {}, []
    for event in events:
        if event["choices"]:
            (choice,) = event["choices"]
            by_choice.setdefault(choice["index"], []).append((event, choice))
        else:
            others.append(event)
    return by_choice, others


def ids_of(body):
    return [choice["token_ids"] for choice in body["choices"]]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_each_of_n_choices_is_what_its_own_seed_gives_alone(client, path):
    body = ASKED if path == "/v1/completions" else CHAT
    together = await ask(client, body, path, n=3)
    alone = [
        await ask(client, body | {"seed": (body["seed"] + index) % 2**64} | OFF, path) for index in range(3)
    ]
    assert ids_of(together) == [ids_of(one)[0] for one in alone]
    assert len({tuple(ids) for ids in ids_of(together)}) == 3
    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2]
    assert together["seed"] == body["seed"]
    usage = together["usage"]
    assert usage["prompt_tokens"] == alone[0]["usage"]["prompt_tokens"]
    assert usage["completion_tokens"] == sum(len(ids) for ids in ids_of(together))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_of_n_choices_is_the_whole_answer_in_pieces(client, path):
    body = ASKED if path == "/v1/completions" else CHAT
    whole = await ask(client, body, path, n=3)
    by_choice, (last,) = await streamed(
        client, body, path, n=3, stream_options={"include_usage": True, "continuous_usage_stats": True}
    )
    assert sorted(by_choice) == [0, 1, 2]
    for choice in whole["choices"]:
        parts = by_choice[choice["index"]]
        assert [token for _, part in parts for token in part["token_ids"]] == choice["token_ids"]
        assert parts[-1][1]["finish_reason"] == choice["finish_reason"]
        assert parts[0][0]["seed"] == body["seed"]
    counted = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [last["usage"][name] for name in counted] == [whole["usage"][name] for name in counted]
    so_far = [event["usage"]["completion_tokens"] for parts in by_choice.values() for event, _ in parts]
    assert max(so_far) == whole["usage"]["completion_tokens"]


async def test_without_a_seed_one_is_drawn_and_gives_all_choices_again(client):
    unseeded = {name: value for name, value in ASKED.items() if name != "seed"}
    first = await ask(client, unseeded, n=2)
    again = await ask(client, unseeded, n=2, seed=first["seed"])
    assert ids_of(first) == ids_of(again)
    other = await ask(client, unseeded, n=2)
    assert ids_of(other) != ids_of(first)


async def test_several_prompts_with_n_choices_each(client):
    prompts = ["The quick", "In the beginning", PROMPT]
    body = await ask(client, ASKED | {"prompt": prompts}, n=2)
    alone = [await ask(client, ASKED | {"prompt": prompt}, n=2) for prompt in prompts]
    assert ids_of(body) == [ids for one in alone for ids in ids_of(one)]
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert body["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in alone)


async def test_best_of_returns_the_most_probable_by_token(client):
    all_of_them = await ask(client, ASKED, n=5, logprobs=0)

    def mean(choice):
        logprobs = choice["logprobs"]["token_logprobs"]
        return sum(logprobs) / len(logprobs)

    ranked = sorted(all_of_them["choices"], key=mean, reverse=True)
    best = await ask(client, ASKED, n=2, best_of=5)
    assert ids_of(best) == [choice["token_ids"] for choice in ranked[:2]]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert all(choice["logprobs"] is None for choice in best["choices"])
    assert best["usage"]["completion_tokens"] == sum(len(ids) for ids in ids_of(best))
    told = await ask(client, ASKED, n=2, best_of=5, logprobs=1)
    assert [mean(choice) for choice in told["choices"]] == [mean(choice) for choice in ranked[:2]]


@pytest.mark.parametrize("max_tokens", [0, 1, 7])
async def test_an_echo_has_the_prompt_before_the_completion(client, max_tokens):
    plain = await ask(client, ASKED, max_tokens=max(max_tokens, 1), prompt_logprobs=2)
    echo = await ask(client, ASKED, max_tokens=max_tokens, echo=True, logprobs=2)
    (choice,), (alone,) = echo["choices"], plain["choices"]
    assert choice["token_ids"] == alone["token_ids"][:max_tokens]
    assert choice["text"].startswith(PROMPT)
    assert choice["finish_reason"] == "length"
    assert echo["usage"]["completion_tokens"] == max_tokens
    logprobs = choice["logprobs"]
    count = len(alone["prompt_token_ids"])
    assert {len(values) for values in logprobs.values()} == {count + max_tokens}
    assert "".join(logprobs["tokens"][:count]) == PROMPT
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    positions = zip(
        alone["prompt_token_ids"], alone["prompt_logprobs"], logprobs["token_logprobs"], strict=False
    )
    for token_id, position, logprob in list(positions)[1:]:
        assert position[str(token_id)]["logprob"] == logprob
    for name, begin, end in zip(
        logprobs["tokens"], logprobs["text_offset"], [*logprobs["text_offset"][1:], None], strict=True
    ):
        if not name.startswith("bytes:"):
            assert choice["text"][begin:end] == name


@pytest.mark.parametrize("max_tokens", [0, 12])
async def test_a_streamed_echo_is_the_whole_one_in_pieces(client, max_tokens):
    fields = {"echo": True, "logprobs": 1, "prompt_logprobs": 0, "prompt": ["The", PROMPT]}
    fields["max_tokens"] = max_tokens
    whole = await ask(client, ASKED, **fields)
    by_choice, _ = await streamed(client, ASKED, **fields)
    for choice in whole["choices"]:
        parts = [part for _, part in by_choice[choice["index"]]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [one for part in parts for one in part["token_ids"]] == choice["token_ids"]
        assert parts[0]["prompt_logprobs"] == choice["prompt_logprobs"]
        for name, values in choice["logprobs"].items():
            assert [one for part in parts if part["logprobs"] for one in part["logprobs"][name]] == values


@pytest.mark.parametrize("top", [0, 1, 20])
async def test_chat_logprobs_are_the_same_whole_streamed_and_without_speculation(client, top):
    fields = {"logprobs": True, "top_logprobs": top, "prompt_logprobs": 1, "n": 2}
    path = "/v1/chat/completions"
    whole, off = await ask(client, CHAT, path, **fields), await ask(client, CHAT | OFF, path, **fields)
    assert [choice["logprobs"] for choice in whole["choices"]] == [
        choice["logprobs"] for choice in off["choices"]
    ]
    assert whole["prompt_logprobs"] == off["prompt_logprobs"]
    assert whole["prompt_logprobs"][0] is None
    assert len(whole["prompt_logprobs"]) == whole["usage"]["prompt_tokens"]
    by_choice, _ = await streamed(client, CHAT, path, **fields)
    for choice in whole["choices"]:
        parts = by_choice[choice["index"]]
        content = [one for _, part in parts if part["logprobs"] for one in part["logprobs"]["content"]]
        assert content == choice["logprobs"]["content"]
        assert len(content) == len(choice["token_ids"])
        assert {len(one["top_logprobs"]) for one in content} == {top}
        assert parts[0][0]["prompt_logprobs"] == whole["prompt_logprobs"]
        assert bytes(byte for one in content for byte in one["bytes"]).decode(errors="replace") == "".join(
            part["delta"].get("content", "") for _, part in parts
        )


async def test_tokens_as_ids(client):
    body = await ask(client, ASKED, logprobs=1, return_tokens_as_token_ids=True)
    (choice,) = body["choices"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token_id}" for token_id in choice["token_ids"]]


@pytest.mark.parametrize("drafter", ["twin", "lookup"])
async def test_statistics_of_each_choice_agree_with_themselves_and_the_usage(client, drafter):
    speculation = {"stats": True, "drafter": drafter, "max_draft_tokens": 3}
    body = await ask(client, ASKED, n=2, speculation=speculation, max_tokens=30, temperature=0)
    details = body["usage"]["completion_tokens_details"]
    per_choice = [choice["speculative_decoding_stats"] for choice in body["choices"]]
    for stats in per_choice:
        histogram = {int(length): count for length, count in stats["acceptance_histogram"].items()}
        assert sum(histogram.values()) == stats["num_spec_steps"]
        accepted = sum(length * count for length, count in histogram.items())
        assert accepted == stats["num_accepted_draft_tokens"] <= stats["num_draft_tokens"]
        assert max(histogram, default=0) <= stats["num_spec_tokens"] == 3
        steps = stats["num_spec_steps"]
        assert stats["mean_acceptance_length"] == (1 + accepted / steps if steps else 1)
    assert details["accepted_prediction_tokens"] == sum(
        stats["num_accepted_draft_tokens"] for stats in per_choice
    )
    assert body["speculation_stats"]["draft_tokens"] == sum(stats["num_draft_tokens"] for stats in per_choice)
    if drafter == "twin":
        assert details["accepted_prediction_tokens"] > 0
    off = await ask(client, ASKED, speculation={"stats": True, "enabled": False})
    assert off["choices"][0]["speculative_decoding_stats"] is None


async def test_a_prompt_can_be_cut_to_its_last_tokens(client):
    prompt = (await ask(client, ASKED))["choices"][0]["prompt_token_ids"]
    for kept in (1, 3, len(prompt), 1000):
        cut = await ask(client, ASKED, truncate_prompt_tokens=kept)
        assert cut["choices"][0]["prompt_token_ids"] == prompt[-kept:]
        assert ids_of(cut) == ids_of(await ask(client, ASKED | {"prompt": prompt[-kept:]}))
    body = await ask(client, ASKED | {"prompt": prompt * 400}, truncate_prompt_tokens=-1, max_tokens=9)
    assert body["usage"]["prompt_tokens"] == 2048 - 9


async def test_many_at_once_do_not_mix(client):
    bodies = [ASKED | {"seed": seed, "n": 2, "logprobs": 1} for seed in range(8)]
    alone = [await ask(client, body | OFF) for body in bodies]
    together = await asyncio.gather(*(ask(client, body) for body in bodies))
    for one, other in zip(alone, together, strict=True):
        assert one["choices"] == other["choices"]
