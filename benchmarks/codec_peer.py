"""The public `capdag` package as a black box: decodes and encodes frames, on its public API alone.

Runs in that package's own environment (`.venv-peer`), never in ours; `benchmarks.codec` asks. A line in is a JSON
object with `bodies` (hex) and `laps`, how often to go over them; the line out holds the seconds that decoding and
encoding took.
"""

from __future__ import annotations

import json
import sys
from time import perf_counter

from capdag.bifaci.io import decode_frame, encode_frame  # type: ignore[import-not-found]


def main() -> None:
    """Answer until the end of stdin."""
    for line in sys.stdin:
        asked = json.loads(line)
        bodies, laps = [bytes.fromhex(body) for body in asked["bodies"]], range(asked["laps"])
        frames = [decode_frame(body) for body in bodies]
        begin = perf_counter()
        for _ in laps:
            for body in bodies:
                decode_frame(body)
        between = perf_counter()
        for _ in laps:
            for frame in frames:
                encode_frame(frame)
        print(json.dumps([between - begin, perf_counter() - between]), flush=True)


if __name__ == "__main__":
    main()
