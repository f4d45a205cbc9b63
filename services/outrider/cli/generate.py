"""`outrider generate`: its options."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.connecting import (
    ApiKeyOption,
    CaOption,
    CertificateOption,
    KeyOption,
    ServerNameOption,
    TlsOption,
    connection_to,
)
from outrider.core.params import Acceptance, Grammar, GrammarKind

if TYPE_CHECKING:
    from outrider.client import Options


def generate(
    prompt: Annotated[str, typer.Argument(help="the text; - reads it from stdin")],
    url: Annotated[str, typer.Option(help="the gateway's gRPC address")] = "127.0.0.1:9000",
    model: Annotated[str, typer.Option(help="empty: the gateway's only one")] = "",
    system: Annotated[str, typer.Option(help="system message")] = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="continue the text itself, without chat template")
    ] = False,
    max_tokens: Annotated[int, typer.Option(min=1)] = 256,
    min_tokens: Annotated[int, typer.Option(min=0, help="no end before so many")] = 0,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: greedy")] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, help="0: all")] = 0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0)] = 1.0,
    min_p: Annotated[float, typer.Option(min=0.0, max=1.0)] = 0.0,
    typical_p: Annotated[float, typer.Option(min=0.0, max=1.0)] = 1.0,
    repetition_penalty: Annotated[float, typer.Option(help="above 1: repeat less")] = 1.0,
    frequency_penalty: Annotated[float, typer.Option(min=-2.0, max=2.0)] = 0.0,
    presence_penalty: Annotated[float, typer.Option(min=-2.0, max=2.0)] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="same seed, same text; default: drawn")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="text that ends it; may be repeated")] = None,
    bad_word: Annotated[list[str] | None, typer.Option(help="never say this; may be repeated")] = None,
    json_schema: Annotated[str, typer.Option(help="answer in this schema: JSON, or a file of it")] = "",
    regex: Annotated[str, typer.Option(help="answer in what this regular expression matches")] = "",
    choice: Annotated[list[str] | None, typer.Option(help="answer in one of these; repeat it")] = None,
    no_speculation: Annotated[bool, typer.Option("--no-speculation", help="ask no drafter")] = False,
    drafter_name: Annotated[
        str, typer.Option("--drafter", help="name, a+b, fused or off; empty: the default")
    ] = "",
    draft_tokens: Annotated[int | None, typer.Option(min=0, help="most draft tokens a round")] = None,
    acceptance: Annotated[
        Acceptance, typer.Option(help="coupled: output as without speculation; the others: of the same law")
    ] = Acceptance.COUPLED,
    show_drafts: Annotated[bool, typer.Option("--show-drafts", help="colour accepted draft tokens")] = False,
    tokenizer: Annotated[Path | None, typer.Option(help="model folder, for --show-drafts")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="only the text")] = False,
    api_key: ApiKeyOption = "",
    tls: TlsOption = False,
    ca: CaOption = None,
    certificate: CertificateOption = None,
    key: KeyOption = None,
    server_name: ServerNameOption = "",
) -> None:
    """Generate from a prompt, streaming to the terminal."""
    from outrider.cli.answer import answer

    text = sys.stdin.read() if prompt == "-" else prompt
    turns = [{"role": "system", "content": system}] if system else []
    options: Options = {
        "model": model,
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical_p": typical_p,
        "repetition_penalty": repetition_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "stop": stop or (),
        "bad_words": bad_word or (),
        "speculation": not no_speculation,
        "drafter": drafter_name,
        "acceptance": acceptance,
    }
    if seed is not None:
        options["seed"] = seed
    if draft_tokens is not None:
        options["max_draft_tokens"] = draft_tokens
    if (grammar := _grammar(json_schema, regex, choice or [])) is not None:
        options["grammar"] = grammar
    answer(
        connection_to(
            url,
            api_key=api_key,
            tls=tls,
            ca=ca,
            certificate=certificate,
            key=key,
            server_name=server_name,
        ),
        text if raw else [*turns, {"role": "user", "content": text}],
        options,
        show_drafts=show_drafts,
        tokenizer=tokenizer,
        quiet=quiet,
    )


def _grammar(schema: str, regex: str, choices: list[str]) -> Grammar | None:
    given = [
        Grammar(kind, text)
        for kind, text in (
            (GrammarKind.JSON_SCHEMA, _schema(schema)),
            (GrammarKind.REGEX, regex),
            (GrammarKind.CHOICE, json.dumps(choices) if choices else ""),
        )
        if text
    ]
    if len(given) > 1:
        raise typer.BadParameter("only one of --json-schema, --regex and --choice can be given")
    return given[0] if given else None


def _schema(value: str) -> str:
    if not value or value.lstrip().startswith(("{", "true", "false")):
        return value
    try:
        return Path(value).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"--json-schema is neither JSON nor a file: {error}") from None
