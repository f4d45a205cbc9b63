"""Write Grafana's dashboards, which stand in scripts/dashboards, into deploy/grafana/dashboards.

With --check write nothing, and fail if the files there are others.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from dashboards import drafter, overview, serve, verifier

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "dashboards"
DASHBOARDS = {
    "overview": overview.DASHBOARD,
    "verifier": verifier.DASHBOARD,
    "drafter": drafter.DASHBOARD,
    "serve": serve.DASHBOARD,
}


def main() -> int:
    """1 if --check found a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare, write nothing")
    check = parser.parse_args().check
    made = {
        FOLDER / f"{name}.json": json.dumps(dashboard.json(), indent=1, ensure_ascii=False) + "\n"
        for name, dashboard in DASHBOARDS.items()
    }
    if not check:
        for path, text in made.items():
            path.write_text(text, "utf-8")
        return 0
    stale = [path.name for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text]
    stale += [path.name for path in FOLDER.glob("*.json") if path not in made]
    if stale:
        print(
            f"dashboards differ from scripts/dashboards: {', '.join(stale)}; run scripts/make_dashboards.py"
        )
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
