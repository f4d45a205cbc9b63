"""`outrider demo`: the main job, to be seen: answers with drafts in colour, then figures."""

from __future__ import annotations

import asyncio
import itertools
import signal
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from outrider.catalogue import resolve
from outrider.cli import logging
from outrider.cli.answer import summary
from outrider.cli.console import FetchProgress, err, out
from outrider.cli.demo_prompts import PROMPTS, DemoPrompt
from outrider.cli.painter import LEGEND, Painter, tokenizer_for
from outrider.cli.serve import addresses_of
from outrider.cli.stack import child_env, need_models, service_specs, stop_time, with_ports
from outrider.cli.supervisor import Running, Supervisor
from outrider.cli.timing import TimedResult, timed
from outrider.client import AsyncClient, Connection, GenerationDelta, Options
from outrider.config import OutriderConfig
from outrider.core.params import FUSED, OFF
from outrider.gateway.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Demo:
    """How much the demo does."""

    max_tokens: int
    repeats: int  # at most
    temperature: float
    seed: int
    budget_s: float = 35.0  # for measuring; one repeat is always done

    def options(self, drafter: str) -> Options:
        """With one drafter, or with speculation off."""
        return {
            "temperature": self.temperature,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "speculation": drafter != OFF,
            "drafter": "" if drafter == OFF else drafter,
        }


Runs = dict[str, list[TimedResult]]
"""Generations of one prompt, by drafter, in the order of the repeats."""


def run_demo(
    config: OutriderConfig, demo: Demo, connection: Callable[[str], Connection] = Connection
) -> bool:
    """Run the whole demo on a stack of its own; True if no output differed.

    `connection` tells how its gateway is reached at an address.
    """
    start = time.perf_counter()
    logging.set_up("warning")  # the services' own reports would disturb the picture
    with FetchProgress() as progress:
        need_models(config, progress)
    tokenizer = tokenizer_for(resolve(config.model))
    free = {"port": 0}
    ports = {
        "verifier": config.verifier.model_copy(update=free),
        "drafters": {name: drafter.model_copy(update=free) for name, drafter in config.drafters.items()},
        "gateway": config.gateway.model_copy(update={"http_port": 0, "grpc_port": 0}),
    }
    config = with_ports(config.model_copy(update=ports))

    async def show(address: str) -> bool:
        async with AsyncClient(connection(address)) as client:
            await _answers(client, demo, drafters_of(config), tokenizer)
            return await _figures(client, demo, drafters_of(config))

    try:
        same = asyncio.run(_on_a_stack(config, show))
    except asyncio.CancelledError:
        raise SystemExit(128 + signal.SIGTERM) from None
    out.print(f"[dim]{time.perf_counter() - start:.0f} s in all[/]")
    return same


def drafters_of(config: OutriderConfig) -> list[str]:
    """What is shown: each drafter, and all together if there are several."""
    together = [FUSED] if len(config.drafters) > 1 else []
    return [*config.drafters, *together]


async def _on_a_stack(config: OutriderConfig, show: Callable[[str], Coroutine[Any, Any, bool]]) -> bool:
    """Run `show` with the gRPC address of a stack that lives as long."""
    said: deque[str] = deque(maxlen=200)
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[str] = loop.create_future()
    this = asyncio.current_task()
    assert this is not None
    loop.add_signal_handler(signal.SIGTERM, this.cancel)  # Ctrl-C does the same by itself

    def on_ready(services: dict[str, Running]) -> None:
        names = ", ".join(f"{name} (pid {running.pid})" for name, running in services.items())
        out.print(f"Running, each a process of its own: {names}.\n", soft_wrap=True)
        ready.set_result(addresses_of(services)[1])

    with service_specs(config) as specs:
        out.print("Starting the services...")
        supervisor = Supervisor(
            specs, child_env(), lambda name, line: said.append(f"[{name}] {line}"), grace_s=stop_time(config)
        )
        stop = asyncio.Event()
        stack = asyncio.create_task(supervisor.run(stop, on_ready))
        showing: asyncio.Task[bool] | None = None
        try:
            started: list[asyncio.Future[Any]] = [stack, ready]
            await asyncio.wait(started, return_when=asyncio.FIRST_COMPLETED)
            if stack.done():
                stack.result()
            showing = asyncio.create_task(show(ready.result()))
            running: list[asyncio.Future[Any]] = [stack, showing]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if not showing.done():
                stack.result()
            return await showing
        except Exception:
            if not stack.done():  # its own error says it already
                err.print(Text("\n".join(said), "dim"), soft_wrap=True)
            raise
        finally:
            if showing is not None:
                showing.cancel()
            stop.set()
            await stack


async def _answers(
    client: AsyncClient, demo: Demo, drafters: Sequence[str], tokenizer: TextTokenizer
) -> None:
    out.print(Panel(LEGEND, expand=False, border_style="dim"))
    for prompt in PROMPTS:
        drafter = drafters[-1] if drafters else OFF
        out.print(Rule(f"{prompt.title} ({drafter})", align="left", style="dim"))
        out.print(Text(prompt.text, "dim italic"), "\n")
        done = await timed(client, _chat(prompt), demo.options(drafter), Painter(out, tokenizer))
        out.print(Text(f"\n\n{summary(done)}\n", "dim"))


async def _figures(client: AsyncClient, demo: Demo, drafters: Sequence[str]) -> bool:
    """Measure every prompt with every drafter and print the table; True if no output differed."""
    results: dict[str, Runs] = {prompt.title: defaultdict(list) for prompt in PROMPTS}
    start = time.perf_counter()
    with out.status("Measuring with speculation on and off, in turns...") as status:
        for repeat in range(demo.repeats):
            # Would one more, as long as those before, still fit?
            if (time.perf_counter() - start) * (repeat + 1) > demo.budget_s * max(repeat, 1):
                break
            order = [OFF, *drafters] if repeat % 2 == 0 else [*reversed(drafters), OFF]
            for prompt, drafter in itertools.product(PROMPTS, order):
                status.update(f"Measuring in turns, {repeat + 1}: {prompt.title}, {drafter}")
                done = await timed(client, _chat(prompt), demo.options(drafter), _ignore)
                results[prompt.title][drafter].append(done)
    out.print(_table(results, drafters, demo))
    return all(same_output(runs, drafter) for runs in results.values() for drafter in runs)


def same_output(runs: Runs, drafter: str) -> bool:
    """True if every run with `drafter` gave the tokens that the first one without speculation gave."""
    return all(run.result.token_ids == runs[OFF][0].result.token_ids for run in runs[drafter])


def _table(results: dict[str, Runs], drafters: Sequence[str], demo: Demo) -> Table:
    repeats = min(len(runs[OFF]) for runs in results.values())
    table = Table(
        title="Speculation on and off",
        caption=f"median of {repeats} runs in turns, at most {demo.max_tokens} tokens, temperature "
        f"{demo.temperature:g}; speed while decoding",
        box=None,
        padding=(0, 1, 0, 0),
        header_style="bold underline",
    )
    for name in ("prompt", "drafter"):
        table.add_column(name, no_wrap=True)
    for name in (
        "tok/s\non",
        "tok/s\noff",
        "ratio",
        "rounds",
        "tok/\nround",
        "accepted",
        "identical\noutput",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for title, runs in results.items():
        for drafter in drafters:
            table.add_row(title, drafter, *_cells(runs, drafter))
        table.add_row()
    return table


def _cells(runs: Runs, drafter: str) -> list[str]:
    on = [run.tokens_per_second for run in runs[drafter]]
    off = [run.tokens_per_second for run in runs[OFF]]
    ratios = [fast / slow for fast, slow in zip(on, off, strict=True) if slow]
    result = runs[drafter][0].result
    return [
        f"{statistics.median(on):.1f}",
        f"{statistics.median(off):.1f}",
        f"{statistics.median(ratios):.2f}x" if ratios else "-",
        str(result.speculation.rounds),
        f"{result.tokens_per_round:.2f}",
        f"{result.acceptance_rate:.0%}",
        "[green]yes[/]" if same_output(runs, drafter) else "[bold red]NO[/]",
    ]


def _chat(prompt: DemoPrompt) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt.text}]


def _ignore(delta: GenerationDelta) -> None:
    """Measuring prints nothing."""
