"""How a process that runs one service is set up, whoever starts it."""

from __future__ import annotations

import gc
import sys

# Measured: OpenMP threads that spin for long cost other processes up to 4x on few cores, while threads
# that never spin are woken anew for each of a step's hundreds of short loops, which costs a third of the
# step. So they spin for some ten microseconds. Trimming and mapping of large blocks cost thousands of page
# faults a second; small pages cost half of a step.
ENVIRONMENT = {
    "GOMP_SPINCOUNT": "20000",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}
"""Acts only if it is set before the process starts."""

_SWITCH_INTERVAL_S = 0.0001
"""The event loop has messages to send while the model's thread runs Python. At Python's own 5 ms it would
wait for that thread to block."""


def favour_latency() -> None:
    """To be called when all is loaded: what lives then lives on, so no collection has to look at it again."""
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
