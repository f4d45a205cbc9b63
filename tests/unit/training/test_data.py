"""What the target writes, and what is kept of it."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from outrider.core.errors import ConfigError
from outrider.training.data.chat import ChatFormat
from outrider.training.data.conversation import Conversation, is_loop
from outrider.training.data.inventing import Plan, Prompt, plan, read_prompts
from outrider.training.data.shards import Sample, Shard, open_shards, shard_path, write_shard
from tests.unit.training.samples import FEATURES, SETTINGS, generator, tiny_data, tiny_engine, tiny_target


def chat() -> ChatFormat:
    return ChatFormat.load(tiny_target(), tiny_engine().eos_token_ids)


def test_chat_format_is_the_templates() -> None:
    tokenizer = chat().tokenizer
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], tokenize=False, add_generation_prompt=True
    )
    own = [*chat().before, *chat().encode("Hello"), *chat().after]
    assert own == tokenizer.encode(rendered, add_special_tokens=False)


def test_a_follow_up_is_the_templates() -> None:
    turns = [("user", "Hello"), ("assistant", "Yes."), ("user", "Why?")]
    rendered = chat().tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in turns],
        tokenize=False,
        add_generation_prompt=True,
    )
    own = [
        *chat().before, *chat().encode("Hello"), *chat().after, *chat().encode("Yes."), 2, *chat().between,
        *chat().encode("Why?"), *chat().after,
    ]  # fmt: skip
    assert own == chat().tokenizer.encode(rendered, add_special_tokens=False)


def test_a_model_without_chat_template_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_target(), tmp_path / "model")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="chat template"):
        ChatFormat.load(folder, frozenset({2}))


def test_loops_are_seen() -> None:
    assert is_loop([1, 2, 3] * 20)
    assert is_loop([*range(64), *[7] * 64])
    assert not is_loop(list(range(200)))
    assert not is_loop([1] * 20)  # too short to tell


def written(free: bool, follow_up: bool = False, message: tuple[int, ...] = (40, 41)) -> Conversation:
    made = Plan("chat", message, free, follow_up, 0.0, 7)
    return Conversation(made, chat(), answer_tokens=24, context=120)


def test_only_answers_are_learnt_from() -> None:
    own = written(free=True)
    before = len(own.token_ids)
    for token_id in (50, 51, 52, 53, 2, *range(100, 110), 2):
        over = own.take(token_id)
    assert over
    assert own.answer == [*range(100, 110), 2]
    assert sum(own.response) == 11
    assert own.token_ids[before : before + 4] == [50, 51, 52, 53]
    assert own.params.top_k == 0


def test_a_message_that_asks_nothing_ends_it() -> None:
    own = written(free=True)
    assert own.params.top_k > 0
    assert own.take(2)
    assert not own.usable


def test_a_message_without_room_for_an_answer_ends_it() -> None:
    own = written(free=True, message=tuple(range(40, 90)))
    taken = 0
    while not own.take(60 + taken % 50):
        taken += 1
    assert taken < 200
    assert not own.usable


def test_a_follow_up_comes_after_a_usable_answer() -> None:
    own = written(free=True, follow_up=True)
    tokens = (50, 51, 52, 53, 2, *range(100, 110), 2)
    assert sum(own.take(token_id) for token_id in tokens) == 0
    assert own.params.top_k > 0  # the user's turn again
    for token_id in (50, 51, 52, 53, 2, *range(200, 210), 2):
        over = own.take(token_id)
    assert over
    assert sum(own.response) == 22
    assert own.answer == [*range(200, 210), 2]


def test_answers_have_a_longest_length_and_room_is_never_short() -> None:
    own = written(free=False)
    length = len(own.token_ids) + own.room
    taken = 0
    while not own.take(60 + taken % 50):
        taken += 1
    assert len(own.answer) == 24
    assert len(own.token_ids) <= length


@pytest.mark.parametrize("seed", range(5))
def test_plans_follow_from_their_source(seed: int) -> None:
    texts = [f"This is text number {number}. It tells of the number {number + 1}." for number in range(50)]
    one, two = (plan(random.Random(seed), chat(), texts, SETTINGS.temperatures) for _ in range(2))
    assert one == two
    assert one.free or one.message


def test_tasks_quote_texts() -> None:
    texts = [f"The colour of house {number} is said to be green." for number in range(50)]
    made = [plan(random.Random(seed), chat(), texts, SETTINGS.temperatures) for seed in range(200)]
    assert {own.category for own in made} == {"chat", "summarization", "translation", "rag", "editing", "qa"}
    quoting = [chat().decode(own.message) for own in made if own.category in ("summarization", "rag")]
    assert all("The colour of house" in text for text in quoting)


def test_shards_hold_what_was_written(tmp_path: Path) -> None:
    def sample(length: int, seed: int) -> Sample:
        response = torch.zeros(length, dtype=torch.bool)
        response[-3:] = True
        features = {"last_hidden": torch.randn(length, 8).bfloat16()}
        return Sample(torch.arange(length) + seed, response, features, f"kind {seed}", 0.7, seed)

    samples = [sample(7, 1), sample(12, 2)]
    write_shard(shard_path(tmp_path, 0), samples)
    shard = Shard(shard_path(tmp_path, 0))
    assert (len(shard), shard.response_tokens, shard.features) == (2, 6, {"last_hidden"})
    for index, own in enumerate(samples):
        read = shard.sample(index, ["last_hidden"])
        assert torch.equal(read.token_ids, own.token_ids)
        assert torch.equal(read.response, own.response)
        assert torch.equal(read.features["last_hidden"], own.features["last_hidden"])
        assert (read.category, read.temperature, read.seed) == (own.category, 0.7, own.seed)
        assert shard.answer(index) == own.token_ids[-3:].tolist()
    end = shard.sample(1, ["last_hidden"], most=5)
    assert torch.equal(end.token_ids, samples[1].token_ids[-5:])
    assert torch.equal(end.features["last_hidden"], samples[1].features["last_hidden"][-5:])
    with pytest.raises(ConfigError, match="hidden_3"):
        shard.sample(0, ["hidden_3"])


def test_what_is_no_shard_is_named(tmp_path: Path) -> None:
    shard_path(tmp_path, 0).write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"00000\.safetensors"):
        open_shards([tmp_path])
    with pytest.raises(ConfigError, match="no training data"):
        open_shards([tmp_path / "empty"])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_that_was_broken_off_goes_on_to_the_same_shards(tmp_path: Path) -> None:
    class Broken(Exception):
        pass

    def breaking(tokens: int) -> None:
        if tokens > 0:
            raise Broken

    broken = generator(tmp_path / "again")
    with pytest.raises(Broken):
        broken.run(400, breaking)
    broken.close()
    generator(tmp_path / "again", batch=7).run(400, lambda tokens: None)
    assert contents(tmp_path / "again") == contents(tiny_data())


def test_features_are_the_targets(tmp_path: Path) -> None:
    """What was kept while it was written is what one forward over the whole text gives."""
    import transformers

    shard = open_shards([tiny_data()])[0]
    sample = shard.sample(0, FEATURES)
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_target(), dtype=torch.float32)
    with torch.inference_mode():
        output = model(sample.token_ids[None], output_hidden_states=True)
    for name in ("hidden_2", "hidden_5"):
        whole = output.hidden_states[int(name.removeprefix("hidden_"))][0]
        torch.testing.assert_close(sample.features[name].float(), whole, rtol=0.02, atol=0.02)
    torch.testing.assert_close(
        sample.features["last_hidden"].float(), output.hidden_states[-1][0], rtol=0.02, atol=0.02
    )


def test_other_settings_are_refused(tmp_path: Path) -> None:
    generator(tmp_path)
    with pytest.raises(ConfigError, match="other settings"):
        generator(tmp_path, settings=replace(SETTINGS, seed=4))


def test_prompts_are_answered_once(tmp_path: Path) -> None:
    prompts = tuple(Prompt(f"kind {number % 2}", f"What is {number}?") for number in range(8))
    settings = replace(SETTINGS, temperatures=((0.0, 1.0),))
    generator(tmp_path, settings=settings, prompts=prompts).run(10**9, lambda tokens: None)
    shards = open_shards([tmp_path])
    assert [len(shard) for shard in shards] == [6, 2]
    first = shards[0].sample(1, ())
    assert chat().decode(first.token_ids.tolist()).startswith("user\nWhat is 1?")
    assert first.category == "kind 1"


def test_prompts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"category": "qa", "turns": ["Who?"]}\n\n{"turns": ["What?", "Why?"]}\n')
    assert read_prompts(path) == [Prompt("qa", "Who?"), Prompt("prompts", "What?")]
    path.write_text('{"turns": []}\n')
    with pytest.raises(ConfigError, match="line 1"):
        read_prompts(path)
    path.write_text("")
    with pytest.raises(ConfigError, match="no prompts"):
        read_prompts(path)
