"""The C allocator's thresholds: a router of large frames asks for blocks of their size again and again.

Left alone, glibc gives blocks of 128 KiB and more back to the system at once and has every page of the next one zeroed
again: half of what passing a 256 KiB frame on costs.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

MMAP_THRESHOLD = 8 << 20
"""Bytes from which a block is the system's own: more than any frame of the default limits."""

TRIM_THRESHOLD = 32 << 20
"""Bytes at the top of the heap that may lie idle before they are given back."""


def keep_freed_blocks() -> None:
    """Have this process keep what it frees, within the thresholds above. Does nothing where there is no glibc."""
    if sys.platform == "linux":
        try:
            mallopt = ctypes.CDLL(None).mallopt
        except AttributeError:  # musl
            return
        mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD)
