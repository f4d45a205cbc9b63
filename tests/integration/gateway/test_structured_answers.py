"""Structured output and forced calls from a real model: random weights, so only the grammar makes it JSON."""

import json
from contextlib import asynccontextmanager
from enum import Enum
from typing import Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.integration.gateway.real_stack import real_addresses
from tests.integration.gateway.test_openai_sdk import check_against_types
from tests.integration.gateway.test_tool_calls import MESSAGES, parts, put_together
from tests.tiny_models import make_tiny
from tests.unit.gateway.test_chat_template import HERMES

OFF, TWIN, LOOKUP = {"enabled": False}, {"drafter": "twin"}, {"drafter": "lookup"}


class Unit(Enum):
    """A closed set."""

    celsius = "celsius"
    kelvin = "kelvin"


class Closed(BaseModel):
    """Without further keys, which a random model would go on and on with."""

    model_config = ConfigDict(extra="forbid")


class Place(Closed):
    """Nested, so that the schema has a reference."""

    city: Literal["Paris", "Rome"]
    zone: int = Field(ge=0, le=24)


class Weather(Closed):
    """What to find out."""

    place: Place
    unit: Unit
    days: list[Literal[1, 2, 3]] = Field(max_length=3)


def tool(name, model):
    return {"type": "function", "function": {"name": name, "parameters": model.model_json_schema()}}


TOOLS = [tool("weather", Weather), tool("locate", Place), {"type": "function", "function": {"name": "now"}}]
MODELS = {"weather": Weather, "locate": Place}


@pytest.fixture(scope="session")
def hermes_folder(tmp_path_factory):
    """A tiny model whose template shows tools."""
    folder = make_tiny("llama", tmp_path_factory.mktemp("hermes"))
    (folder / "chat_template.jinja").write_text(HERMES)
    return folder


@asynccontextmanager
async def sdk_over(folder):
    """The SDK over a real stack with two drafters."""
    drafters = {"twin": {"method": "draft_model"}, "lookup": {"method": "prompt_lookup"}}
    async with (
        real_addresses(folder, drafters=drafters) as addresses,
        openai.AsyncOpenAI(base_url=f"{addresses['http']}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


async def ask(client, speculation=TWIN, *, stream=False, **fields):
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 512, "seed": 7, "temperature": 1.0}
    body = {"speculation": speculation} | fields.pop("extra_body", {})
    return await client.chat.completions.create(**asked | fields, extra_body=body, stream=stream)


def check_call(name, arguments):
    """The arguments are what the tool's schema says."""
    if name in MODELS:
        MODELS[name].model_validate_json(arguments)
    else:
        assert json.loads(arguments) == {}


async def test_forced_calls_are_valid_and_the_same_whatever_drafts(hermes_folder):
    named = {"type": "function", "function": {"name": "weather"}}
    async with sdk_over(hermes_folder) as client:
        for choice, reason in ((named, "stop"), ("required", "tool_calls")):
            answers = [
                (await ask(client, speculation, tools=TOOLS, tool_choice=choice)).choices[0]
                for speculation in (OFF, TWIN, LOOKUP)
            ]
            content, calls = parts(answers[0])
            assert content is None
            assert all(parts(answer) == (content, calls) for answer in answers)
            assert {answer.finish_reason for answer in answers} == {reason}
            for call in calls:
                check_call(*call)
            chunks = [
                chunk async for chunk in await ask(client, tools=TOOLS, tool_choice=choice, stream=True)
            ]
            assert put_together(chunks) == ("", calls, reason)
        assert len(parts((await ask(client, tools=TOOLS, tool_choice=named)).choices[0])[1]) == 1


async def test_every_seed_calls_some_tool(hermes_folder):
    async with sdk_over(hermes_folder) as client:
        for seed in range(4):
            answer = await ask(client, tools=TOOLS, tool_choice="required", seed=seed)
            check_against_types(answer)
            calls = parts(answer.choices[0])[1]
            assert calls
            for call in calls[:-1] if answer.choices[0].finish_reason == "length" else calls:
                check_call(*call)


async def test_one_call_if_calls_are_not_parallel(hermes_folder):
    async with sdk_over(hermes_folder) as client:
        single = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
        for seed in range(4):
            (choice,) = (await ask(client, seed=seed, **single)).choices
            (call,) = parts(choice)[1]
            assert choice.finish_reason == "tool_calls"
            check_call(*call)


async def test_the_sdk_parses_a_pydantic_model(hermes_folder):
    async with sdk_over(hermes_folder) as client:
        found = await client.chat.completions.parse(
            model="tiny", messages=MESSAGES, response_format=Weather, max_tokens=512, seed=1
        )
        assert isinstance(found.choices[0].message.parsed, Weather)
        async with client.chat.completions.stream(
            model="tiny", messages=MESSAGES, response_format=Weather, max_tokens=512, seed=1
        ) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.parsed == found.choices[0].message.parsed
        called = await client.chat.completions.parse(
            model="tiny",
            messages=MESSAGES,
            tools=[openai.pydantic_function_tool(Weather)],
            tool_choice={"type": "function", "function": {"name": "Weather"}},
            max_tokens=512,
            seed=1,
        )
        (call,) = called.choices[0].message.tool_calls
        assert isinstance(call.function.parsed_arguments, Weather)


async def test_every_way_to_ask_for_a_structure(hermes_folder):
    schema = Place.model_json_schema()
    named = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    async with sdk_over(hermes_folder) as client:
        texts = set()
        for fields in (
            {"response_format": named},
            {"extra_body": {"guided_json": schema}},
            {"extra_body": {"structured_outputs": {"json": json.dumps(schema)}}},
        ):
            answer = (await ask(client, **fields)).choices[0]
            assert answer.finish_reason == "stop"
            Place.model_validate_json(answer.message.content)
            texts.add(answer.message.content)
        assert len(texts) == 1
        for body, allowed in (
            ({"guided_choice": ["yes", "né"]}, {"yes", "né"}),
            ({"structured_outputs": {"regex": "(ab){2}"}}, {"abab"}),
            ({"guided_grammar": 'root ::= "x" ("y" | "z")'}, {"xy", "xz"}),
        ):
            assert (await ask(client, extra_body=body)).choices[0].message.content in allowed
            completion = await client.completions.create(
                model="tiny", prompt="so", max_tokens=64, seed=3, extra_body=body
            )
            assert completion.choices[0].text in allowed
        anything = await ask(client, response_format={"type": "json_object"}, max_tokens=64)
        assert anything.choices[0].message.content.lstrip().startswith("{")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_grammar": "nonsense ::"}, "guided_grammar"),
        ({"guided_json": {"type": "sometimes"}}, "guided_json"),
        ({"structured_outputs": {"regex": "["}}, "structured_outputs"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 1}}}},
            "response_format",
        ),
        (
            {
                "tools": [{"type": "function", "function": {"name": "a", "parameters": {"properties": 1}}}],
                "tool_choice": "required",
            },
            "tools",
        ),
    ],
)
async def test_what_does_not_compile_is_a_400_that_names_the_field(hermes_folder, fields, param):
    async with (
        real_addresses(hermes_folder) as addresses,
        httpx.AsyncClient(base_url=addresses["http"], timeout=60) as client,
    ):
        for stream in (False, True):
            body = {"messages": MESSAGES, "max_tokens": 4, "stream": stream, **fields}
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["type"] == "invalid_request_error"
            assert answer.json()["error"]["param"] == param
