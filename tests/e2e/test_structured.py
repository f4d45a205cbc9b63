"""Structured output of real services: it fits the grammar, and is the same with speculation and without."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from outrider.wire.v1 import common_pb2, generation_pb2
from tests.stack import Stack
from tests.traffic import ask, connected, generate, generate_all


class City(BaseModel):
    """Without further keys or blanks, which a small model would go on and on with."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"x-guidance": {"whitespace_flexible": False}}
    )

    name: str = Field(max_length=24)
    country: Literal["France", "Italy", "Spain"]
    founded: int = Field(ge=-1000, le=2000)
    rivers: list[Annotated[str, Field(max_length=12)]] = Field(max_length=2)


def asking(kind: str, text: str, **request: Any) -> generation_pb2.GenerateRequest:
    wanted = ask(ignore_eos=False, **request)
    wanted.sampling.edits.grammar.kind = common_pb2.GrammarKind.Value(f"GRAMMAR_KIND_{kind}")
    wanted.sampling.edits.grammar.text = text
    return wanted


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_schema_on_the_demo_model(demo: Stack, temperature: float) -> None:
    prompt = "Rome, as a JSON object with name, country, founded and rivers:\n"
    schema = json.dumps(City.model_json_schema())
    requests = [
        asking("JSON_SCHEMA", schema, prompt=prompt, drafter=drafter, max_tokens=120, temperature=temperature)
        for drafter in (None, "draft_model", "prompt_lookup")
    ]
    async with connected(demo.grpc) as stub:
        off = await generate(stub, requests[0])
        on = await generate_all(stub, requests[1:])
    assert [one.token_ids for one in on] == [off.token_ids] * 2
    assert [one.text for one in on] == [off.text] * 2
    assert off.finished.reason == common_pb2.FINISH_REASON_STOP
    City.model_validate_json(off.text, strict=True)
    assert on[0].stats.draft_tokens > 0


@pytest.mark.parametrize("drafter", [None, "twin", "lookup"])
async def test_a_choice_is_one_of_those_offered(tiny: Stack, drafter: str | None) -> None:
    choices = ["the first", "the second", "none of them"]
    async with connected(tiny.grpc) as stub:
        got = await generate_all(
            stub,
            [
                asking("CHOICE", json.dumps(choices), drafter=drafter, temperature=1.0, seed=seed)
                for seed in range(6)
            ],
        )
    assert {one.text for one in got} <= set(choices)
    assert len({one.text for one in got}) > 1
