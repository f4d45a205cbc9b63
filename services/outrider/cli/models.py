"""`outrider models`: what can be fetched by name, and fetching it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from outrider.catalogue import CATALOGUE, fetch, is_fetched, resolve
from outrider.cli.console import FetchProgress, out

app = typer.Typer(help="Models by name: list them, fetch them into the cache.", no_args_is_help=True)


@app.command("list")
def list_models() -> None:
    """List the models that can be fetched by name."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("name", no_wrap=True)
    table.add_column("in the cache", no_wrap=True)
    table.add_column("licence", no_wrap=True)
    table.add_column("what it is, and where it comes from")
    for entry in CATALOGUE.values():
        size = "no"
        if is_fetched(entry.name):
            files = resolve(entry.name).iterdir()
            size = f"{sum(file.stat().st_size for file in files) / 1e6:.0f} MB"
        table.add_row(entry.name, size, entry.licence, f"{entry.about}\n({entry.source})")
    out.print(table)


@app.command("fetch")
def fetch_model(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="names from `outrider models list`")],
) -> None:
    """Download, check and convert models, once; prints the folder of each."""
    for name in names:
        with FetchProgress() as progress:
            folder = fetch(name, progress)
        out.print(str(folder), soft_wrap=True)
