"""FNV-1a 64 over payload bytes, from a native library (protocol-spec/wire.md, Checksums)."""

from __future__ import annotations

import fnv_c


def fnv1a_64(data: bytes) -> int:
    """Return the FNV-1a 64 hash of `data`; the empty input hashes to the offset basis."""
    return int(fnv_c.fnv1a_64(data))
