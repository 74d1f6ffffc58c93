"""The process in which one target is fuzzed: `python -m fuzz.engine TARGET` and libFuzzer's own arguments."""

from __future__ import annotations

import sys

import atheris

from fuzz.targets import load

if __name__ == "__main__":
    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=["capdag"]):
        target = load(name)
    atheris.Setup(sys.argv, target.check)
    atheris.Fuzz()
