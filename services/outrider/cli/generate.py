"""`outrider generate`: one generation from the terminal, over the public gRPC API."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rich.text import Text

from outrider.catalogue import resolve
from outrider.cli.client import GatewayClient, Generation
from outrider.cli.console import err, out
from outrider.cli.painter import LEGEND, Painter, tokenizer_for
from outrider.core.errors import ConfigError, UnavailableError
from outrider.gateway.tokenizer import TextTokenizer
from outrider.wire.messages import GenerationRequest


def generate(
    address: str,
    request: GenerationRequest,
    *,
    draw_seed: bool,
    show_drafts: bool,
    tokenizer: Path | None,
    quiet: bool,
) -> None:
    """Stream one generation to stdout; what it counted goes to stderr."""
    done = asyncio.run(_generate(address, request, draw_seed, show_drafts, tokenizer))
    sys.stdout.write("\n")
    sys.stdout.flush()
    if not quiet:
        err.print(Text(summary(done), "dim"), soft_wrap=True)


def summary(done: Generation) -> str:
    """One line on what a generation took."""
    stats, usage = done.speculation, done.usage
    parts = [
        f"{usage.prompt_tokens} prompt + {usage.completion_tokens} tokens, {done.reason.value}",
        f"first after {done.first_s * 1000:.0f} ms, then {done.tokens_per_second:.1f} tokens/s",
        f"seed {done.seed}",
    ]
    if stats.drafter:
        share = f"{stats.accepted_tokens} of {stats.draft_tokens} draft tokens accepted"
        parts.append(f"{stats.drafter}: {stats.rounds} rounds, {share}")
    return "; ".join(parts)


async def _generate(
    address: str, request: GenerationRequest, draw_seed: bool, show_drafts: bool, folder: Path | None
) -> Generation:
    async with GatewayClient(address) as client:
        tokenizer = None
        try:
            if show_drafts:
                tokenizer = _tokenizer(folder, await client.model())
                err.print(LEGEND, soft_wrap=True)
            return await client.generate(request, Painter(out, tokenizer), draw_seed=draw_seed)
        except UnavailableError as error:
            raise UnavailableError(
                f"no answer from {address}: {error} (is `outrider serve` running?)"
            ) from None


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
