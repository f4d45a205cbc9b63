"""Write the files of the Helm chart that come from elsewhere: a chart reads only what lies in its folder.

- `values.schema.json`: k8s/values.schema.base.json, with the schemas of the typed configuration
- `files/rules/` and `files/dashboards/`: copies of deploy/prometheus/rules and deploy/grafana/dashboards

With --check, write nothing and fail if one of them differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from outrider.rayserve.arguments import ServeArguments
from outrider.scaling.settings import ScalingSettings

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "k8s" / "outrider"
BASE = ROOT / "k8s" / "values.schema.base.json"
COPIES = {
    "files/rules": ROOT / "deploy" / "prometheus" / "rules",
    "files/dashboards": ROOT / "deploy" / "grafana" / "dashboards",
}
"""Folder in the chart, and where its files come from."""
SUFFIXES = (".yaml", ".json")


def wanted() -> dict[Path, str]:
    """What each file is to hold, by its path."""
    files = {CHART / "values.schema.json": json.dumps(values_schema(), indent=1) + "\n"}
    for folder, source in COPIES.items():
        for path in sorted(source.glob("*")):
            if path.suffix in SUFFIXES:
                files[CHART / folder / path.name] = path.read_text("utf-8")
    return files


def values_schema() -> dict[str, Any]:
    """The JSON schema of the chart's values."""
    schema: dict[str, Any] = json.loads(BASE.read_text("utf-8"))
    for model in (ServeArguments, ScalingSettings):
        own = model.model_json_schema()
        schema["$defs"] |= own.pop("$defs", {}) | {model.__name__: own}
    schema["$defs"].pop(ServeArguments.__name__)  # its parts are values of their own
    _strip(schema["$defs"])
    return schema


def _strip(node: Any) -> None:
    """Take out what tells a reader nothing: titles made from names."""
    if isinstance(node, list):
        for item in node:
            _strip(item)
    elif isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        for item in node.values():
            _strip(item)


def stale() -> list[str]:
    """Files that differ from what is wanted, are missing, or have no source any more."""
    files = wanted()
    there = {CHART / "values.schema.json"} | {
        path for folder in COPIES for path in (CHART / folder).glob("*.*")
    }
    wrong = {path for path, text in files.items() if path not in there or path.read_text("utf-8") != text}
    return sorted(str(path.relative_to(ROOT)) for path in wrong | (there - files.keys()))


def write() -> None:
    """Make the files what is wanted."""
    files = wanted()
    for folder in COPIES:
        for path in (CHART / folder).glob("*.*"):
            if path not in files:
                path.unlink()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare, write nothing")
    if not parser.parse_args().check:
        write()
    elif found := stale():
        sys.exit(f"out of date: {', '.join(found)}; run `python scripts/chart_files.py`")
