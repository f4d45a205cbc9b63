"""Generate the gRPC stubs in services/outrider/wire/v1 from protos/ (run by `make proto`).

With --check, generate into a temporary folder and fail if the committed stubs differ.
"""

from __future__ import annotations

import argparse
import filecmp
import re
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
STUBS = ROOT / "services" / "outrider" / "wire" / "v1"
# protoc derives Python packages from proto paths; ours live below outrider.wire.
IMPORT = re.compile(r"^from outrider\.v1 import", re.MULTILINE)


def generate(target: Path) -> list[Path]:
    """Write all stubs into `target` and return their paths."""
    with tempfile.TemporaryDirectory() as folder:
        sources = sorted(str(path) for path in (PROTOS / "outrider" / "v1").glob("*.proto"))
        arguments = ["protoc", f"-I{PROTOS}", f"-I{files('grpc_tools') / '_proto'}"]
        arguments += [f"--python_out={folder}", f"--pyi_out={folder}", f"--grpc_python_out={folder}"]
        if protoc.main([*arguments, *sources]) != 0:
            sys.exit("protoc failed: see its messages above")
        target.mkdir(parents=True, exist_ok=True)
        written = []
        for source in sorted((Path(folder) / "outrider" / "v1").iterdir()):
            path = target / source.name
            path.write_text(IMPORT.sub("from outrider.wire.v1 import", source.read_text()))
            written.append(path)
        init = target / "__init__.py"
        init.write_text('"""Generated from protos/ by `make proto`. Do not edit."""\n')
        return [*written, init]


def check() -> None:
    """Exit with an error unless the committed stubs are what protos/ gives."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = generate(Path(folder))
        names = {path.name for path in fresh}
        stale = [
            p.name
            for p in fresh
            if not (STUBS / p.name).exists() or not filecmp.cmp(p, STUBS / p.name, False)
        ]
        stale += [p.name for p in STUBS.glob("*.py*") if p.name not in names and p.is_file()]
    if stale:
        sys.exit(f"stubs differ from protos/: {', '.join(sorted(stale))}; run `make proto`")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare, write nothing")
    check() if parser.parse_args().check else generate(STUBS)
