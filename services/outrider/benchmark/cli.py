"""`outrider bench`: speculation on against off, through the public API."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from outrider.benchmark.client import Client, RequestOptions
from outrider.benchmark.measure import Runner, Sample, rows_of
from outrider.benchmark.provenance import provenance
from outrider.benchmark.report import table_of, write_rows
from outrider.benchmark.stack import overrides_for, running_stack
from outrider.benchmark.workload import OFF, Block, Prompt, block_size, plan, read_prompts
from outrider.core.errors import ConfigError

TABLE_WIDTH = 130


@dataclass(frozen=True, slots=True)
class Settings:
    """What one run of the benchmark does."""

    prompts: Sequence[Prompt]
    drafters: Sequence[str]
    concurrencies: Sequence[int]
    options: RequestOptions
    rate: float | None = None
    api_key: str = field(default="", repr=False)
    ca: Path | None = None


async def measure(url: str, settings: Settings, progress: Progress) -> list[Sample]:
    """Run the whole plan against the gateway at `url`; one request per drafter warms up first."""
    samples: list[Sample] = []
    total = len(settings.prompts) * len(settings.drafters)
    verify = ssl.create_default_context(cafile=settings.ca) if settings.ca else True
    connections = max(settings.concurrencies)
    async with Client(url, connections=connections, api_key=settings.api_key, verify=verify) as client:
        model = await client.model()
        for drafter in settings.drafters:
            progress.console.log(f"warming up: {drafter}")
            await client.generate(model, settings.prompts[0], drafter, settings.options)
        for concurrency in settings.concurrencies:
            task = progress.add_task(f"concurrency {concurrency}", total=total)

            def answered(block: Block, task: int = int(task)) -> None:
                progress.advance(task)  # type: ignore[arg-type]  # TaskID is an int
                progress.update(task, description=block.drafter)  # type: ignore[arg-type]

            runner = Runner(client, model, settings.options, settings.rate, answered)
            size = block_size(concurrency, open_loop=settings.rate is not None)
            for block in plan(settings.prompts, settings.drafters, size):
                samples += await runner.run(block, concurrency)
            progress.update(task, description=f"concurrency {concurrency}")
    return samples


def bench(
    prompts: Annotated[Path, typer.Option(help="JSONL: id, category, turns; the first turn is sent")],
    drafters: Annotated[str, typer.Option(help='names from the configuration, "fused", "a+b" and "off"')] = (
        "off,eagle,prompt_lookup,fused"
    ),
    concurrency: Annotated[str, typer.Option(help="requests in flight, such as 1,8")] = "1",
    max_tokens: Annotated[int, typer.Option(min=1)] = 128,
    temperature: Annotated[float, typer.Option(min=0.0)] = 0.0,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    json_path: Annotated[Path | None, typer.Option("--json", help="write the rows here, as JSONL")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="prompts, taken from the categories in turn")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, help="requests a second, open loop; --concurrency is then only a cap"),
    ] = None,
    draft_tokens: Annotated[
        int | None, typer.Option(min=1, help="draft tokens a round; default: the verifier's")
    ] = None,
    completions: Annotated[
        bool, typer.Option("--completions", help="raw completion instead of chat")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="configuration of the stack to start")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="path=value, as for serve")] = None,
    url: Annotated[str | None, typer.Option(help="measure this gateway instead of starting a stack")] = None,
    api_key: Annotated[
        str, typer.Option(envvar="OUTRIDER_API_KEY", help="key for the gateway; better in the environment")
    ] = "",
    ca: Annotated[
        Path | None, typer.Option(help="authorities of the gateway's certificate, PEM", dir_okay=False)
    ] = None,
) -> None:
    """Measure speculation on against off, interleaved, on your prompts."""
    settings = Settings(
        prompts=read_prompts(prompts, limit),
        drafters=_names(drafters),
        concurrencies=_numbers(concurrency),
        options=RequestOptions(max_tokens, temperature, seed, completions, draft_tokens),
        rate=rate,
        api_key=api_key,
        ca=ca,
    )
    if url and (config or overrides):
        raise ConfigError("--url measures a running stack: --config and --set have no effect on it")
    console = Console(stderr=True)
    with ExitStack() as stack:
        if url is None:
            console.log("starting a stack")
            settings_of_stack = overrides_for(config, overrides or ())
            url = stack.enter_context(running_stack(config, settings_of_stack))["http"]
        progress = stack.enter_context(_progress(console))
        samples = asyncio.run(measure(url, settings, progress))
    rows = rows_of(samples)
    if json_path is not None:
        write_rows(json_path, rows, provenance())
    mode = f"max {max_tokens} tokens, temperature {temperature:g}, seed {seed}"
    # A file or a pipe has no width of its own: give the table the one it needs.
    out = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    out.print(table_of(rows, mode + (f", {rate:g} requests/s" if rate else "")))


def _progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description:16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError(f'--drafters needs at least one name, such as "{OFF}"')
    if len(set(names)) != len(names):
        raise ConfigError(f"--drafters names one twice: {text}")
    return names


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--concurrency takes numbers such as 1,8, got {text!r}") from error
    if min(numbers) < 1:
        raise ConfigError(f"--concurrency starts at 1, got {text!r}")
    return numbers
