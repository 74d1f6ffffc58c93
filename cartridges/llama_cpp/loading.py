"""Loading a model: checks that give a reason, the engine's parameters, and what it says on stderr if it fails."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from capdag.cartridge import CartridgeError
from capdag.errors import AttributionClass
from capdag.models import GgufError, ModelFacts, read_facts

from .room import usable_context
from .settings import OPENMP, Settings

if TYPE_CHECKING:
    import xllamacpp

_BATCH: Final = 16
"""Tokens between two looks at a cancel in a prompt. Small, since on a CPU a batch takes long and larger ones gain
nothing."""

_BLOCK: Final = 4 * 1024 * 1024
_TEE_PATIENCE: Final = 2.0
_REASON_PATIENCE: Final = 0.5
_REASON_MARKS: Final = ("error loading model: ", "failed to initialize the context: ")
_MEMORY_MARKS: Final = ("bad_alloc", "failed to allocate")

Report = Callable[[float, str], None]
"""Takes how far the loading is, 0.0 to 1.0, and a text. May raise to give it up."""


def load(settings: Settings, report: Report) -> xllamacpp.Server:
    """Load the model and return llama.cpp's server for it, which listens nowhere that anyone can reach.

    Blocks; while the file is read `report` is called, then nothing runs in this process until llama.cpp has the model:
    its constructor holds the interpreter. Raises CartridgeError MODEL_LOAD_FAILED with the reason.
    """
    path = Path(settings.path)
    try:
        facts = read_facts(path)
        _warm(path, settings.model, report)
        return _construct(settings, facts)
    except (GgufError, OSError) as error:
        raise _failed(settings, str(error)) from None
    except ImportError as error:
        library, remedy = OPENMP
        if library not in str(error):
            remedy = "pip install 'capdag-trio[llama]'"
        reason = f"its engine cannot be imported ({error}): {remedy}"
        raise _failed(settings, reason) from None


def _warm(path: Path, model: str, report: Report) -> None:
    """Read the file once, so that it is in memory when llama.cpp maps it: this part can report and be given up."""
    total = path.stat().st_size
    done = 0
    block = memoryview(bytearray(_BLOCK))
    report(0.0, f"loading {model}")
    last = time.monotonic()
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            done += count
            if time.monotonic() - last >= 0.25:
                last = time.monotonic()
                report(done / total, f"loading {model}: {done >> 20:,} of {total >> 20:,} MiB")


def _construct(settings: Settings, facts: ModelFacts) -> xllamacpp.Server:
    import xllamacpp

    # The server always listens. It cannot be reached: on a socket in a folder that only we may enter, and that is gone
    # once it runs, behind a key that nobody knows. The path by descriptor keeps within the length of socket names.
    with tempfile.TemporaryDirectory(prefix="capdag-llama-") as folder, _opened(folder) as descriptor:
        parameters = _parameters(settings, facts)
        parameters.hostnames = [f"/proc/self/fd/{descriptor}/engine.sock"]
        parameters.api_keys = [secrets.token_hex(32)]
        said = Path(folder) / "stderr"
        try:
            with _copied_stderr(said):
                return xllamacpp.Server(parameters)
        except RuntimeError as error:
            reason = _reason(said) or str(error)
            if any(mark in reason for mark in _MEMORY_MARKS):
                room = f"{settings.slots} slots of {usable_context(settings, facts):,} tokens"
                reason = f"there is not enough memory for {room}: lower `slots` or `context`"
            raise _failed(settings, reason) from None


def _parameters(settings: Settings, facts: ModelFacts) -> xllamacpp.CommonParams:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = settings.path
    parameters.n_parallel = settings.slots
    parameters.n_ctx = settings.slots * usable_context(settings, facts)
    parameters.n_batch = parameters.n_ubatch = max(_BATCH, settings.slots)
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = settings.engine_threads
    parameters.n_threads_http = 1
    parameters.verbosity = 1  # errors; 0 would hide why a load fails
    parameters.cache_ram_mib = 0  # or it keeps up to 8 GiB of old prompts
    parameters.fit_params = False  # or it loads twice, and may shrink the context
    parameters.warmup = False  # or the interpreter is held for longer
    return parameters


@contextmanager
def _opened(folder: str) -> Iterator[int]:
    if sys.platform != "linux":
        raise CartridgeError(
            "MODEL_LOAD_FAILED",
            "the llama.cpp cartridge shuts its engine off by means that only Linux has: run it there",
            AttributionClass.ENVIRONMENT,
            {"retryable": False},
        )
    else:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


@contextmanager
def _copied_stderr(copy: Path) -> Iterator[None]:
    """Copy what is written to descriptor 2 in the block into a file too.

    By a process: no thread of ours runs while the engine's constructor holds the interpreter, and what an engine says
    before it aborts must still reach the real stderr.
    """
    stderr = os.dup(2)
    try:
        tee = subprocess.Popen(["tee", copy], stdin=subprocess.PIPE, stdout=stderr)  # noqa: S607 - from PATH
        assert tee.stdin is not None
        os.dup2(tee.stdin.fileno(), 2)
        tee.stdin.close()
        try:
            yield
        except RuntimeError:
            _await_reason(copy)
            raise
        finally:
            os.dup2(stderr, 2)
            with suppress(subprocess.TimeoutExpired):
                tee.wait(_TEE_PATIENCE)
            tee.kill()
            tee.wait()
    finally:
        os.close(stderr)


def _await_reason(copy: Path) -> None:
    """Wait until the reason is written: the engine's log has a thread of its own, which comes after the exception."""
    deadline = time.monotonic() + _REASON_PATIENCE
    while not _reason(copy) and time.monotonic() < deadline:
        time.sleep(0.01)


def _reason(copy: Path) -> str:
    """Return what llama.cpp gave as the reason, "" if it gave none."""
    try:
        said = copy.read_text("utf-8", "replace")
    except FileNotFoundError:  # tee has not begun
        return ""
    for line in said.splitlines():
        for mark in _REASON_MARKS:
            _, found, reason = line.partition(mark)
            if found:
                return reason
    return ""


def _failed(settings: Settings, reason: str) -> CartridgeError:
    return CartridgeError(
        "MODEL_LOAD_FAILED",
        f"{settings.model} could not be loaded: {reason.rstrip('.')}. The next request tries again.",
        AttributionClass.ENVIRONMENT,
        {"retryable": False},
    )
