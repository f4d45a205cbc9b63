"""`outrider train`: data that the target writes, drafters that learn from it, and how good they are."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from outrider.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from outrider.training.curves import Report
    from outrider.training.data.shards import Shard

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
DEFAULT_TARGET = "smollm2-135m-instruct"

TargetOption = Annotated[str, typer.Option("--target", help="catalogue name or folder")]
DeviceOption = Annotated[str, typer.Option(help="torch device, such as cpu or cuda")]
DtypeOption = Annotated[Literal["bfloat16", "float32"], typer.Option(help="type of activations")]
ThreadsOption = Annotated[int, typer.Option(min=0, help="torch threads; 0: torch's default")]
Method = Literal["eagle", "eagle3", "medusa", "draft_model"]


@app.command()
def data(
    out: Annotated[Path, typer.Option(help="folder of the shards; a run that was broken off goes on")],
    tokens: Annotated[int, typer.Option(min=1, help="tokens of answers")] = 1_000_000,
    target: TargetOption = DEFAULT_TARGET,
    prompts: Annotated[
        Path | None, typer.Option(help="JSONL with turns: answer these instead of what the target invents")
    ] = None,
    temperatures: Annotated[
        str, typer.Option(help="of answers, each with its share: value:share,...")
    ] = "0:0.6,0.7:0.28,1:0.12",
    features: Annotated[str, typer.Option(help="hidden states to keep; empty: what every method needs")] = "",
    seed: Annotated[int, typer.Option(min=0)] = 1,
    batch: Annotated[int, typer.Option(min=1, help="conversations written at once")] = 64,
    answer_tokens: Annotated[int, typer.Option(min=16, help="longest answer")] = 256,
    context: Annotated[int, typer.Option(min=64, help="longest conversation")] = 1280,
    shard_size: Annotated[int, typer.Option(min=1, help="conversations of a shard")] = 64,
    threads: ThreadsOption = 0,
    dtype: DtypeOption = "bfloat16",
    device: DeviceOption = "cpu",
) -> None:
    """Let the target write conversations, and keep its hidden states."""
    from outrider import catalogue
    from outrider.config.schema import EngineConfig
    from outrider.engine.engine import Engine
    from outrider.training.data.chat import ChatFormat
    from outrider.training.data.folder import DataFolder
    from outrider.training.data.generator import DataSettings, Generator
    from outrider.training.data.inventing import read_prompts

    folder = catalogue.resolve(target)
    asked = read_prompts(prompts) if prompts else []
    # Every conversation has room for its longest form, and a block more.
    pool = max(batch * (context + answer_tokens + 32), 4096)
    engine = Engine.load(
        folder,
        EngineConfig(dtype=dtype, device=device, threads=threads, pool_tokens=pool, prefix_cache=False),
        name=Path(target).name,
    )
    settings = DataSettings(
        seed=seed,
        features=tuple(features.split(",")) if features else _all_features(engine.info.num_layers),
        shard_size=shard_size,
        answer_tokens=answer_tokens,
        context=context,
        temperatures=_temperatures(temperatures),
    )
    chat = ChatFormat.load(folder, engine.eos_token_ids)
    about = settings.about(engine.info.identity) | {"prompts": prompts.name if prompts else ""}
    shards = DataFolder(out, about, chat)
    generator = Generator(engine, chat, shards, settings, batch=batch, prompts=asked)
    with _progress("tokens of answers", tokens) as advance:
        generator.run(sys.maxsize if asked else tokens, advance)


@app.command()
def run(
    method: Annotated[Method, typer.Argument(help="what to train")],
    data_folders: Annotated[list[Path], typer.Option("--data", help="folder of shards; may be repeated")],
    out: Annotated[Path, typer.Option(help="folder of the run; one that was broken off goes on")],
    steps: Annotated[int, typer.Option(min=1, help="steps of the optimiser")] = 5000,
    target: TargetOption = DEFAULT_TARGET,
    judge: Annotated[
        Path | None, typer.Option(help="shards to judge by; default: the first one of the data, held out")
    ] = None,
    vocabulary: Annotated[Path | None, typer.Option(help="safetensors file of a draft vocabulary")] = None,
    columns: Annotated[
        int, typer.Option(min=16, help="size of the draft vocabulary: the most frequent tokens")
    ] = 8192,
    start: Annotated[Path | None, typer.Option(help="go on from this drafter's weights")] = None,
    rate: Annotated[float, typer.Option(min=0.0, help="highest learning rate")] = 2e-3,
    batch_tokens: Annotated[int, typer.Option(min=16, help="tokens of a step")] = 1400,
    single: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="share of the steps before the head learns on its own states"),
    ] = 0.5,
    unroll: Annotated[int, typer.Option(min=1, help="tokens it then drafts on them")] = 3,
    measure_every: Annotated[int, typer.Option(min=1, help="steps between measurements")] = 500,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    threads: ThreadsOption = 0,
    dtype: DtypeOption = "bfloat16",
    device: DeviceOption = "cpu",
) -> None:
    """Train a drafter; `OUT/drafter` is what `drafters.<name>.model` takes."""
    import torch

    from outrider.training.data.shards import open_shards
    from outrider.training.schedule import Schedule
    from outrider.training.starting import build_student
    from outrider.training.trainer import Trainer, TrainingSettings

    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(seed)
    shards, held_out = _split(open_shards(data_folders), judge)
    student = build_student(
        method,
        target,
        shards,
        vocabulary=vocabulary,
        columns=columns,
        start=start,
        compute=getattr(torch, dtype),
        device=device,
    )
    settings = TrainingSettings(
        Schedule(steps, rate, single=single, unroll=unroll),
        seed=seed,
        batch_tokens=batch_tokens,
        measure_every=measure_every,
    )
    every = (shard.sample(index, student.features) for shard in held_out for index in range(len(shard)))
    greedy = [sample for sample in every if sample.temperature == 0.0]
    trainer = Trainer(student, shards, greedy, settings, out)
    with _progress("steps", steps) as advance:
        advance(trainer.progress.step)
        trainer.run(lambda report: _told(report, advance))


def _split(shards: Sequence[Shard], judge: Path | None) -> tuple[Sequence[Shard], Sequence[Shard]]:
    from outrider.training.data.shards import open_shards

    if judge is not None:
        return shards, open_shards([judge])
    if len(shards) < 2:
        raise ConfigError("one shard is no data to learn from and be judged by: write more, or give --judge")
    return shards[1:], shards[:1]


def _told(report: Report, advance: _Advance) -> None:
    line = f"loss {report.loss:.3f}"
    if report.acceptance:
        line += f"  {report.tokens_per_round:.3f} tokens a round"
    advance(report.step, line)


@app.command()
def evaluate(
    data_folder: Annotated[Path, typer.Option("--data", help="shards of texts to judge by")],
    method: Annotated[
        Literal["eagle", "medusa", "draft_model", "prompt_lookup", "suffix"],
        typer.Option(help="drafting method"),
    ],
    model: Annotated[str, typer.Option(help="catalogue name or folder of the drafter")] = "",
    target: TargetOption = DEFAULT_TARGET,
    tree: Annotated[str, typer.Option(help="chain, dynamic, or branches by depth: 3,2,1,1")] = "chain",
    tree_nodes: Annotated[int, typer.Option(min=1, help="most nodes of a tree")] = 22,
    length: Annotated[int, typer.Option(min=1, help="depth of drafts")] = 4,
    limit: Annotated[int, typer.Option(min=0, help="texts; 0: all")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", help="write the counts here, as JSONL")] = None,
    threads: ThreadsOption = 0,
    dtype: DtypeOption = "bfloat16",
    device: DeviceOption = "cpu",
) -> None:
    """Count the tokens a round of a drafter on texts that the target wrote (`outrider train data --prompts`).

    By the rule "coupled" output does not depend on the drafter: the texts say what of each draft is accepted.
    """
    from outrider.config.schema import DrafterConfig
    from outrider.drafting.factory import build_method
    from outrider.training.data.shards import open_shards
    from outrider.training.evaluation import evaluate_method, table_of, write_counts

    config = DrafterConfig(
        method=method,
        model=model,
        tree=tree,
        tree_nodes=tree_nodes,
        dtype=dtype,
        device=device,
        threads=threads,
        max_draft_tokens=max(length, tree_nodes),
    )
    shards = open_shards([data_folder])
    nodes = 0 if tree == "chain" else tree_nodes
    total = min(sum(map(len, shards)), limit or sys.maxsize)
    with _progress("texts", total) as advance:
        counts = evaluate_method(build_method(config, target), shards, length, nodes, limit, advance)
    if json_path is not None:
        write_counts(json_path, counts)
    Console(width=None if sys.stdout.isatty() else 110).print(table_of(counts))


class _Advance:
    """Moves a progress bar to a number."""

    def __init__(self, progress: Progress, total: int, title: str) -> None:
        self._progress = progress
        self._title = title
        self._task = progress.add_task(title, total=total)

    def __call__(self, done: int, line: str = "") -> None:
        text = f"{self._title}  {line}" if line else self._title
        self._progress.update(self._task, completed=done, description=text)
        if line and not self._progress.console.is_terminal:
            self._progress.console.print(f"{done}: {line}")


@contextmanager
def _progress(title: str, total: int) -> Iterator[_Advance]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield _Advance(progress, total, title)


def _all_features(layers: int) -> tuple[str, ...]:
    """What EAGLE and EAGLE-3 join, and what all others learn from."""
    from outrider.core.features import LAST_HIDDEN, hidden_after

    joined = (hidden_after(number) for number in (2, layers // 2, layers - 3, layers) if number >= 0)
    return tuple(dict.fromkeys((*joined, LAST_HIDDEN)))


def _temperatures(text: str) -> tuple[tuple[float, float], ...]:
    try:
        pairs = [part.split(":") for part in text.split(",")]
        values = tuple((float(value), float(share)) for value, share in pairs)
    except ValueError as error:
        raise ConfigError(
            f"--temperatures takes value:share,... such as 0:0.6,1:0.4, got {text!r}"
        ) from error
    if any(value < 0 or share <= 0 for value, share in values):
        raise ConfigError(f"--temperatures takes values of at least 0 with shares above 0, got {text!r}")
    return values
