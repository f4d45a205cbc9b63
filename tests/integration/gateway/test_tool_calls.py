"""Tool calls through a gateway whose verifier plays what a model would write."""

import json
from contextlib import AsyncExitStack, asynccontextmanager

import openai
import pytest
from tokenizers import AddedToken, Tokenizer

from outrider.core.errors import InvalidRequestError
from outrider.core.fingerprint import tokenizer_fingerprint
from outrider.core.params import GrammarKind
from tests.integration.gateway.conftest import Stack, config_for, gateway_over
from tests.integration.gateway.scripted_verifier import ScriptedVerifier, info_for, running
from tests.integration.gateway.test_openai_sdk import check_against_types
from tests.unit.gateway import tokenizers_zoo as zoo
from tests.unit.gateway.test_chat_template import HERMES, SMOLLM2

MISTRAL = "{{ tools | tojson }}[TOOL_CALLS]{% for message in messages %}{{ message.content }}{% endfor %}"
UNKNOWN = "{{ tools | tojson }}{% for message in messages %}{{ message.content }}{% endfor %}"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
NOW = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
PARIS = '{"city": "Paris"}'
MESSAGES = [{"role": "user", "content": "hello"}]


def tokenizer() -> Tokenizer:
    copy = Tokenizer.from_str(zoo.byte_level().to_str())
    copy.add_tokens([AddedToken("[TOOL_CALLS]", special=True)])
    return copy


@pytest.fixture(scope="session")
def open_stack(tmp_path_factory):
    """Stacks whose model has a given template, and writes a given text."""

    @asynccontextmanager
    async def make(template: str, text: str = "", **gateway):
        folder = tmp_path_factory.mktemp("model")
        tokenizer().save(str(folder / "tokenizer.json"))
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"")
        (folder / "chat_template.jinja").write_text(template)
        sizes = {"vocab_size": tokenizer().get_vocab_size(), "context_length": 4096}
        info = info_for(tokenizer_fingerprint(folder), **sizes)
        end = tokenizer().token_to_id("</s>")

        def script(_):
            ids = tokenizer().encode(text, add_special_tokens=False).ids
            return [([token], 0) for token in [*ids, end]]

        verifier = ScriptedVerifier(info, script)
        async with AsyncExitStack() as stack:
            address = await stack.enter_async_context(running(verifier))
            up = await stack.enter_async_context(gateway_over(config_for(folder, address, **gateway)))
            addresses, serving, stop = up
            yield Stack(addresses["http"], addresses["grpc"], verifier, stop, serving)

    return make


async def ask(stack: Stack, **fields):
    """A whole answer, and the same as a stream put together by the SDK."""
    asked = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 400} | fields
    asked["extra_body"] = {"stop_token_ids": [tokenizer().token_to_id("</s>")]} | asked.pop("extra_body", {})
    async with stack.sdk() as client:
        whole = await client.chat.completions.create(**asked)
        check_against_types(whole)
        chunks = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
    return whole.choices[0], chunks


def put_together(chunks):
    """Content, calls and finish reason of a stream; each id and each name comes once."""
    content, calls, reason = "", [], None
    for chunk in chunks:
        check_against_types(chunk)
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or ():
            if call.index == len(calls):
                assert call.id
                assert call.type == "function"
                calls.append([call.function.name, call.function.arguments])
            else:
                assert call.index == len(calls) - 1
                assert call.id is None
                assert call.function.name is None
                calls[-1][1] += call.function.arguments
    return content, [tuple(call) for call in calls], reason


def parts(choice):
    calls = choice.message.tool_calls or ()
    return choice.message.content, [(call.function.name, call.function.arguments) for call in calls]


async def check(stack: Stack, content, calls, reason, **fields):
    """The answer has these parts, whole and as a stream."""
    choice, chunks = await ask(stack, **fields)
    assert parts(choice) == (content, calls)
    assert choice.finish_reason == reason
    assert put_together(chunks) == (content or "", calls, reason)
    ids = [call.id for call in choice.message.tool_calls or ()]
    assert len(set(ids)) == len(ids)
    return ids


@pytest.mark.parametrize(
    ("text", "content", "calls", "reason"),
    [
        ("the quick fox", "the quick fox", [], "stop"),
        (WEATHER, None, [("weather", PARIS)], "tool_calls"),
        (f"I look.\n{WEATHER}\n{NOW}", "I look.", [("weather", PARIS), ("now", "{}")], "tool_calls"),
        ("<tool_call>soon</tool_call>", "<tool_call>soon</tool_call>", [], "stop"),
    ],
)
async def test_auto_reads_the_models_own_calls(open_stack, text, content, calls, reason):
    async with open_stack(HERMES, text) as stack:
        await check(stack, content, calls, reason)
        (session, *_) = stack.verifier.sessions.values()
        assert session.request.sampling.edits.grammar is None
        assert '"name": "weather"' in tokenizer().decode(session.request.prompt)


async def test_a_call_that_is_cut_is_text(open_stack):
    async with open_stack(HERMES, WEATHER) as stack:
        ids = tokenizer().encode(WEATHER).ids[:12]
        text = tokenizer().decode(ids)
        await check(stack, text, [], "length", max_tokens=12)


async def test_one_call_if_calls_are_not_parallel(open_stack):
    async with open_stack(HERMES, WEATHER + NOW) as stack:
        await check(stack, None, [("weather", PARIS)], "tool_calls", parallel_tool_calls=False)


async def test_none_reads_no_calls_but_shows_the_tools(open_stack):
    async with open_stack(HERMES, NOW) as stack:
        await check(stack, NOW, [], "stop", tool_choice="none")
        (session, *_) = stack.verifier.sessions.values()
        assert '"name": "weather"' in tokenizer().decode(session.request.prompt)


async def test_a_named_function_is_the_whole_answer(open_stack):
    async with open_stack(UNKNOWN, PARIS) as stack:
        named = {"type": "function", "function": {"name": "weather"}}
        await check(stack, None, [("weather", PARIS)], "stop", tool_choice=named)
        (session, *_) = stack.verifier.sessions.values()
        grammar = session.request.sampling.edits.grammar
        assert grammar.kind is GrammarKind.JSON_SCHEMA
        assert json.loads(grammar.text).items() >= CITY.items()
        await check(stack, None, [("weather", '{"c')], "length", tool_choice=named, max_tokens=3)


async def test_required_calls_are_a_list(open_stack):
    text = '[{"name": "weather", "parameters": {"city": "Paris"}}, {"name": "now", "parameters": {}}]'
    async with open_stack(UNKNOWN, text) as stack:
        calls = [("weather", PARIS), ("now", "{}")]
        await check(stack, None, calls, "tool_calls", tool_choice="required")
        _, chunks = await ask(stack, tool_choice="required")
        pieces = [chunk for chunk in chunks if chunk.choices[0].delta.tool_calls]
        assert len(pieces) > len(calls), "arguments come as they are written"


async def test_a_mark_that_is_a_special_token_is_seen(open_stack):
    async with open_stack(MISTRAL, '[TOOL_CALLS][{"name": "now", "arguments": {}}]') as stack:
        (call_id,) = await check(stack, None, [("now", "{}")], "tool_calls")
        assert len(call_id) == 9
        assert call_id.isalnum()
        await check(stack, '[{"name": "now", "arguments": {}}]', [], "stop", tool_choice="none")


async def test_token_ids_come_with_text_that_is_held_back(open_stack):
    async with open_stack(HERMES, WEATHER) as stack:
        choice, chunks = await ask(stack, extra_body={"return_token_ids": True})
        assert choice.model_extra["token_ids"] == tokenizer().encode(WEATHER).ids
        ids = [token for chunk in chunks for token in chunk.choices[0].model_extra["token_ids"]]
        assert ids == choice.model_extra["token_ids"]


async def test_the_sdks_stream_helper_reads_calls(open_stack):
    end = tokenizer().token_to_id("</s>")
    asked = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "extra_body": {"stop_token_ids": [end]}}
    async with open_stack(HERMES, f"I look. {WEATHER}") as stack, stack.sdk() as client:
        async with client.chat.completions.stream(**asked) as stream:
            kinds = {event.type async for event in stream}
            final = await stream.get_final_completion()
        assert "tool_calls.function.arguments.done" in kinds
        assert parts(final.choices[0]) == ("I look.", [("weather", PARIS)])


async def test_results_of_calls_go_back_to_the_model(open_stack):
    async with open_stack(HERMES, WEATHER) as stack:
        choice, _ = await ask(stack)
        (call,) = choice.message.tool_calls
        answered = [
            *MESSAGES,
            choice.message.model_dump(exclude_unset=True),
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ]
        stack.verifier.sessions.clear()
        await ask(stack, messages=answered)
        (session, *_) = stack.verifier.sessions.values()
        prompt = tokenizer().decode(session.request.prompt)
        call_text = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
        assert f"<assistant>{call_text}<tool>sunny<assistant>" in prompt


@pytest.mark.parametrize(
    ("template", "fields", "param", "text"),
    [
        (SMOLLM2, {}, "tools", "no place for tools"),
        (SMOLLM2, {"tool_choice": "required"}, "tools", "no place for tools"),
        (UNKNOWN, {}, "tools", "gateway.tool_parser"),
        (
            HERMES,
            {"extra_body": {"chat_template": "x"}},
            "chat_template",
            "gateway.trust_request_chat_template",
        ),
        (UNKNOWN, {"extra_body": {"documents": [{"text": "x"}]}}, "documents", "no place for documents"),
    ],
)
async def test_what_a_model_cannot_do_is_refused(open_stack, template, fields, param, text):
    async with open_stack(template) as stack:
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(stack, **fields)
        assert refused.value.param == param
        assert text in refused.value.message
        assert not stack.verifier.sessions


async def test_the_format_of_calls_can_be_configured(open_stack):
    async with open_stack(UNKNOWN, NOW, tool_parser="hermes") as stack:
        await check(stack, None, [("now", "{}")], "tool_calls")


async def test_a_trusted_template_of_a_request(open_stack):
    async with open_stack(SMOLLM2, NOW, trust_request_chat_template=True) as stack:
        told = {"chat_template": HERMES + "{{ mood }}", "chat_template_kwargs": {"mood": "glad"}}
        await check(stack, None, [("now", "{}")], "tool_calls", extra_body=told)
        (session, *_) = stack.verifier.sessions.values()
        assert tokenizer().decode(session.request.prompt).endswith("<assistant>glad")
        endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(stack, extra_body={"chat_template": HERMES + endless})
        assert "steps" in refused.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS, "tool_choice": "required"}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"extra_body": {"guided_regex": "("}}, "guided_regex"),
        ({"extra_body": {"structured_outputs": {"regex": "("}}}, "structured_outputs"),
    ],
)
async def test_what_the_compiler_says_is_about_the_field_that_asked(open_stack, fields, param):
    async with open_stack(HERMES) as stack, stack.sdk() as client:
        stack.verifier.refuse = InvalidRequestError("grammar does not compile", field="grammar")
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=stream, **fields)
            assert refused.value.param == param
            assert refused.value.code is None
            assert "does not compile" in refused.value.message


async def test_each_choice_has_its_own_calls(open_stack):
    end = tokenizer().token_to_id("</s>")
    asked = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "n": 2, "max_tokens": 400}
    async with open_stack(HERMES, WEATHER) as stack, stack.sdk() as client:
        body = {"stop_token_ids": [end]}
        whole = await client.chat.completions.create(**asked, extra_body=body)
        assert [parts(choice) for choice in whole.choices] == [(None, [("weather", PARIS)])] * 2
        stream = await client.chat.completions.create(**asked, extra_body=body, stream=True)
        chunks = [chunk async for chunk in stream]
        for index in range(2):
            own = [chunk for chunk in chunks if chunk.choices[0].index == index]
            assert put_together(own) == ("", [("weather", PARIS)], "tool_calls")
