"""The gateway's process carries neither torch nor transformers nor the engine."""

import subprocess
import sys

PROGRAM = """
import sys
import outrider.gateway.server
heavy = ("torch", "transformers", "outrider.engine", "outrider.verifying", "outrider.drafting")
print(",".join(name for name in heavy if name in sys.modules))
"""


def test_nothing_heavy_is_imported():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
