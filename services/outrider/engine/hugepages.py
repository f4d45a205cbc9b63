"""Weights on huge pages.

A decoding step reads every weight once, 270 MB for the demo target; on 4 KiB pages most of that time goes
into address translation. Measured here (bench/engine_step.py, 2 cores of a virtual machine): a step takes
about half as long with huge pages.
"""

from __future__ import annotations

import ctypes
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_log = logging.getLogger(__name__)

_HUGE = 2 << 20  # bytes of a huge page on x86-64 and arm64 with 4 KiB pages
_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25  # Linux 6.1 and later: now, not some day by a background thread
_MAPS = Path("/proc/self/maps")
_ANONYMOUS = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *(\[heap\])?$")


def back_with_huge_pages() -> int:
    """Ask the kernel to put this process's large anonymous memory on huge pages; once, after loading.

    Only a hint: where the system does not offer it, nothing changes.

    Returns:
        Bytes that the kernel took the hint for.
    """
    if sys.platform != "linux" or not _MAPS.exists():
        return 0
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    taken = 0
    for start, end in _large_regions(_MAPS.read_text()):
        if madvise(start, end - start, _MADV_HUGEPAGE) == 0:
            # What is not resident or not movable stays as it is: an error here is no news.
            madvise(start, end - start, _MADV_COLLAPSE)
            taken += end - start
    _log.debug("%d MiB of memory may use huge pages", taken >> 20)
    return taken


def _large_regions(maps: str) -> Iterator[tuple[int, int]]:
    """Anonymous writable regions that hold at least one aligned huge page, cut to whole ones."""
    for line in maps.splitlines():
        match = _ANONYMOUS.match(line)
        if match is None:
            continue
        start = -(-int(match[1], 16) // _HUGE) * _HUGE
        end = int(match[2], 16) // _HUGE * _HUGE
        if end > start:
            yield start, end
