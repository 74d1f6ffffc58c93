"""The SDK beside the public package's (goals S1 and S2): CPU of what it sends and takes, and its cold start."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import trio

from capdag.client import Argument, Client
from capdag.host import CartridgeRecord, HostRuntime
from capdag.relay import open_switch
from capdag.transport import local_link_pair, new_run_id, open_guardian
from capdag.wire import decode_value

from .rounds import measure, report
from .sdk_caps import BLOCK, HANDLERS_VARIABLE, OCTETS, PIECE, cap_of
from .spoken import ROOT, Spoken

OURS = (sys.executable, "-m", "capdag.cartridge", "benchmarks.sdk_cartridge")
TASKS = {HANDLERS_VARIABLE: "tasks"}
PEER = (str(ROOT / ".venv-peer/bin/python"), str(ROOT / "benchmarks/sdk_peer.py"))
HERE = Path(__file__).parent
"""The peer's folder: in the root our own package would be imported in place of it."""

PIECES, PEER_PIECES = 20_000, 4_000
BLOCKS = 64 * 4
"""64 MiB."""
ECHOES, PEER_ECHOES = 200, 10


def _cpu(child: Spoken) -> int:
    child.ask(cap_of("cpu"), OCTETS, b"?")
    return int(decode_value(child.answer()[0]))


def _cpu_of(child: Spoken, function: str, count: int) -> float:
    """Return the microseconds of CPU that one CHUNK costs the cartridge."""
    before = _cpu(child)
    child.ask(cap_of(function), OCTETS, str(count).encode())
    payloads = child.answer()
    wanted = {"pieces": PIECE, "blocks": BLOCK}[function]
    assert len(payloads) == count
    assert all(decode_value(payload) == wanted for payload in payloads)
    return (_cpu(child) - before) / count / 1000


def _echo(child: Spoken, count: int) -> float:
    """Return the median microseconds of a round trip of 120 bytes."""
    times = []
    for _ in range(count):
        begin = perf_counter()
        child.ask(cap_of("echo"), OCTETS, bytes(120))
        assert decode_value(child.answer()[0]) == bytes(120)
        times.append(perf_counter() - begin)
    return median(times) * 1e6


def _steady() -> None:
    """Print goal S1."""
    with Spoken(OURS, {}) as ours, Spoken(OURS, TASKS) as tasks, Spoken(PEER, {}, HERE) as peer:
        report(
            "S1: items of 30 bytes; floor 0.15, goal 0.05 of the public SDK", "us of CPU a CHUNK",
            measure({
                "public SDK": lambda: _cpu_of(peer, "pieces", PEER_PIECES),
                "ours, plain handler": lambda: _cpu_of(ours, "pieces", PIECES),
                "ours, async handler": lambda: _cpu_of(tasks, "pieces", PIECES),
            }), "public SDK",
        )  # fmt: skip
        report(
            "S1: echo of 120 bytes; floor 0.1, goal 0.02 of the public SDK", "us a round trip",
            measure({
                "public SDK": lambda: _echo(peer, PEER_ECHOES),
                "ours, plain handler": lambda: _echo(ours, ECHOES),
                "ours, async handler": lambda: _echo(tasks, ECHOES),
            }), "public SDK",
        )  # fmt: skip
        blocks = measure({
            "public SDK": lambda: _cpu_of(peer, "blocks", BLOCKS),
            "ours, plain handler": lambda: _cpu_of(ours, "blocks", BLOCKS),
            "ours, async handler": lambda: _cpu_of(tasks, "blocks", BLOCKS),
        })  # fmt: skip
        report(
            "S1: 64 MiB out in CHUNKs of 256 KiB, every one summed; floor 1/40, goal 1/80 of the public SDK",
            "us of CPU a CHUNK", blocks, "public SDK",
        )  # fmt: skip


def _python(code: str) -> Callable[[], float]:
    """Return what measures the milliseconds of CPU that a bare Python takes to run something."""

    def run() -> float:
        child = os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)
        _, status, used = os.wait4(child, 0)
        assert status == 0
        return (used.ru_utime + used.ru_stime) * 1000

    return run


def _first_frame(command: tuple[str, ...], environment: dict[str, str], folder: Path = ROOT) -> float:
    """Return the milliseconds from starting a cartridge directly to the first frame of an answer."""
    begin = perf_counter()
    with Spoken(command, environment, folder) as child:
        child.ask(cap_of("echo"), OCTETS, bytes(120))
        child.next()
        return (perf_counter() - begin) * 1000


def _hello(command: tuple[str, ...], environment: dict[str, str], folder: Path = ROOT) -> float:
    begin = perf_counter()
    with Spoken(command, environment, folder):
        return (perf_counter() - begin) * 1000


async def _cold(guardian: Any) -> float:
    """Return the milliseconds from a call through switch and host, which has to start the cartridge, to its first
    event."""
    near, far = local_link_pair("host")
    async with open_switch() as switch, trio.open_nursery() as nursery:
        host = HostRuntime([CartridgeRecord("measured", OURS, [{"urn": cap_of("echo")}])], far, guardian)
        far.connect(host.receiver)
        near.connect(switch.attach(near, "host"))
        await nursery.start(host.run)
        await switch.wait_for(cap_of("echo"))
        begin = perf_counter()
        async with Client(switch).call(cap_of("echo"), [Argument(OCTETS, bytes(120))]) as call:
            await anext(aiter(call))
            took = perf_counter() - begin
        await host.shutdown()
        nursery.cancel_scope.cancel()
    return took * 1000


async def _cold_rounds(rounds: int) -> list[float]:
    async with open_guardian(new_run_id()) as guardian:
        return [await _cold(guardian) for _ in range(rounds)]


def _start() -> None:
    """Print goal S2."""
    imports = measure({
        "python": _python("pass"),
        "python, import of the SDK": _python("import capdag.cartridge"),
    })  # fmt: skip
    report("S2: import", "ms of CPU", imports, "python")
    bare, with_sdk = imports.values()
    added = median(after - before for before, after in zip(bare, with_sdk, strict=True))
    print(f"  the SDK adds {added:.1f} ms; floor 30, goal 20")
    report(
        "S2: start to HELLO; floor 0.2 of the public SDK", "ms",
        measure({
            "public SDK": lambda: _hello(PEER, {}, HERE),
            "ours, plain handlers": lambda: _hello(OURS, {}),
            "ours, async handlers": lambda: _hello(OURS, TASKS),
        }), "public SDK",
    )  # fmt: skip
    report(
        "S2: start to first frame; through switch and host: floor 1.3, goal 1.1", "ms",
        measure({
            "without a host": lambda: _first_frame(OURS, {}),
            "async handlers, without a host": lambda: _first_frame(OURS, TASKS),
            "through switch and host": lambda: trio.run(_cold_rounds, 1)[0],
        }), "without a host",
    )  # fmt: skip


def main() -> None:
    """Print both. Every process finds its modules compiled, as an installed one does."""
    with TemporaryDirectory() as compiled:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = compiled
        _steady()
        _start()
