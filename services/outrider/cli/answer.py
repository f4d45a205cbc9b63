"""One generation on the terminal, over the public gRPC API."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rich.text import Text

from outrider.catalogue import resolve
from outrider.cli.console import err, out
from outrider.cli.hints import hint
from outrider.cli.painter import LEGEND, Painter, tokenizer_for
from outrider.cli.timing import TimedResult, timed
from outrider.client import AsyncClient, Connection, Options, Prompt
from outrider.core.errors import ConfigError, ProtocolError, UnauthenticatedError, UnavailableError
from outrider.gateway.tokenizer import TextTokenizer


def answer(
    connection: Connection,
    prompt: Prompt,
    options: Options,
    *,
    show_drafts: bool,
    tokenizer: Path | None,
    quiet: bool,
) -> None:
    """Stream one generation to stdout; what it counted goes to stderr."""
    done = asyncio.run(_answer(connection, prompt, options, show_drafts, tokenizer))
    sys.stdout.write("\n")
    sys.stdout.flush()
    if not quiet:
        err.print(Text(summary(done), "dim"), soft_wrap=True)


def summary(done: TimedResult) -> str:
    """One line on what a generation took."""
    result = done.result
    stats, usage = result.speculation, result.usage
    parts = [
        f"{usage.prompt_tokens} prompt + {usage.completion_tokens} tokens"
        + (f", {result.reason.value}" if result.reason else ""),
        f"first after {done.first_s * 1000:.0f} ms, then {done.tokens_per_second:.1f} tokens/s",
        f"seed {result.seed}",
    ]
    if stats.drafter:
        share = f"{stats.accepted_tokens} of {stats.draft_tokens} draft tokens accepted"
        parts.append(f"{stats.drafter}: {stats.rounds} rounds, {share}")
    return "; ".join(parts)


async def _answer(
    connection: Connection, prompt: Prompt, options: Options, show_drafts: bool, folder: Path | None
) -> TimedResult:
    async with AsyncClient(connection) as client:
        tokenizer = None
        try:
            if show_drafts:
                tokenizer = _tokenizer(folder, await _model(client))
                err.print(LEGEND, soft_wrap=True)
            return await timed(client, prompt, options, Painter(out, tokenizer))
        except UnauthenticatedError as error:
            raise UnauthenticatedError(f"{error} (put yours into OUTRIDER_API_KEY)") from None
        except UnavailableError as error:
            raise UnavailableError(
                f"no answer from {connection.address}: {error} ({hint(str(connection.address), str(error))})"
            ) from None


async def _model(client: AsyncClient) -> str:
    models = await client.models()
    if not models:
        raise ProtocolError("the gateway serves no model")
    return models[0].model_name


def _tokenizer(folder: Path | None, model: str) -> TextTokenizer:
    if folder is not None:
        return tokenizer_for(folder)
    try:
        return tokenizer_for(resolve(model))
    except ConfigError as error:
        raise ConfigError(
            f"--show-drafts needs the tokenizer of model {model!r} here: {error}; or give its folder "
            "with --tokenizer"
        ) from None
