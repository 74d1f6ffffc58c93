"""The process in which one target is fuzzed: `python -m fuzz.engine LAUNCHER TARGET` and libFuzzer's own arguments.

LAUNCHER is a program that starts this one with the same target: libFuzzer starts itself again to merge a corpus.
"""

from __future__ import annotations

import sys

import atheris

from fuzz.targets import load

if __name__ == "__main__":
    _, launcher, name, *arguments = sys.argv
    with atheris.instrument_imports(include=["capdag"]):
        target = load(name)
    atheris.Setup([launcher, *arguments], target.check)
    atheris.Fuzz()
