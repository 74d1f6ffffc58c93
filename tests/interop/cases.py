"""The cases of the matrix, and the faults of the public package that show in each role.

A case is one function for every role. Where a fault shows, it asserts the fault and what our side makes of it: the
table says no more than what is so. `protocol-spec/interop.md` has the same table and the faults by number.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import trio

from capdag.wire import NetworkPolicy
from cartridges.echo import ECHO
from tests.interop.bench import Bench, Kind, until
from tests.interop.engines import Log, Outcome
from tests.interop.vocabulary import EXIT_STATUS, FAILURE, PIECE, POURED, STEPS, WARNING, cap

LARGE = bytes(range(256)) * (33 << 10)
"""8 MiB and a bit, 34 CHUNKs of the largest size: more than a window of 32."""

LARGER = LARGE[:300_000]

SILENCE = 0.6
"""Seconds after which a call is given up where a fault keeps its terminal from coming."""

Faults = Collection[str]
Case = Callable[[Bench, Faults], Awaitable[None]]


async def small(bench: Bench, faults: Faults) -> None:
    """Small payloads both ways, many at once."""
    await _echo_together(bench, [("left", b"hello %d" % number) for number in range(8)])


async def large(bench: Bench, faults: Faults) -> None:
    """More than 8 MiB both ways, past the window."""
    assert await bench.call("echo", "left", LARGE) == _answer(LARGE)


async def shipped(bench: Bench, faults: Faults) -> None:
    """The echo cartridge that we ship, which answers while its argument is still coming."""
    assert await bench.engine.call(ECHO, LARGER) == _answer(LARGER)


async def sequence(bench: Bench, faults: Faults) -> None:
    """Items both ways, more than a window of them, one of them of several CHUNKs."""
    items = ["x" * 600_000, {"text": "a", "list": [1, 2.5, None, True]}, 7, *[f"item {n}" for n in range(37)]]
    assert await bench.call("items", "left", items=items) == Outcome("end", None, items)


async def progress(bench: Bench, faults: Faults) -> None:
    """Progress and a warning on the way."""
    steps = [("progress", f"at {step}", step) for step in STEPS]
    assert await bench.call("steps", "left", b"done") == _answer(b"done", [*steps, ("warn", WARNING, None)])


async def error(bench: Bench, faults: Faults) -> None:
    """A failure of the handler's: code, class and message, as far as the package keeps them."""
    _check_failure(await bench.call("fail", "left"), faults)


async def peer_call(bench: Bench, faults: Faults) -> None:
    """A cartridge calls its neighbour on the same host."""
    outcome = await bench.call("call", "left", _to_call("echo", "right", b"neighbour"), **_untold("P3", faults))
    if "P3" in faults:
        assert outcome.ended == "untold"
    else:
        assert outcome == _answer(b"neighbour")
    await bench.settled()
    await _echo_together(bench, [("left", b"still here"), ("right", b"still here")])


async def peer_call_across(bench: Bench, faults: Faults) -> None:
    """A cartridge calls one on another host, and is told of its progress and its failure."""
    outcome = await bench.call("call", "left", _to_call("steps", "far", b"far away"))
    assert (outcome.ended, outcome.value) == ("end", b"far away")
    assert [step for level, _, step in outcome.logs if level == "progress"] == ([] if "P6" in faults else [*STEPS])
    _check_failure(await bench.call("call", "left", _to_call("fail", "far")), faults)


async def peer_call_long(bench: Bench, faults: Faults) -> None:
    """A cartridge calls one on another host, whose answer is longer than a window."""
    outcome = await bench.call("call", "left", _to_call("pour", "far"), **_untold("P7", faults))
    if "P7" in faults:
        assert outcome.ended == "untold"
    else:
        assert outcome == _answer(POURED * PIECE.encode())
    if "P2" in faults:
        # The caller does not hear that it is cancelled, so it does not cancel its call: that one ends with its host.
        bench.stuck.append(cap("pour", "far"))
    await bench.settled()


async def peer_call_nobody(bench: Bench, faults: Faults) -> None:
    """A cartridge calls what nobody serves, and is told so; its neighbours' calls go on."""
    nobody = b"cap:nobody;in=media:octets;out=media:octets\n"
    outcome = await bench.call("call", "left", nobody, **_untold("P8", faults))
    if "P8" in faults:
        assert outcome.ended == "untold"
    else:
        assert outcome.failure is not None
        assert (outcome.ended, outcome.failure[0]) == ("err", "HANDLER_ERROR" if "P1" in faults else "NO_HANDLER")
    await bench.settled()
    await bench.hosts_settled()
    assert await bench.call("call", "left", _to_call("echo", "far", b"on")) == _answer(b"on")


async def two(bench: Bench, faults: Faults) -> None:
    """Two cartridges at once, one of each kind, small requests beside larger ones."""
    asked = [(cartridge, b"%d" % number) for cartridge in ("left", "right") for number in range(6)]
    await _echo_together(bench, [*asked, ("left", LARGER), ("right", LARGER)])


async def policy(bench: Bench, faults: Faults) -> None:
    """A change of the network policy reaches cartridges that run, before the next request."""
    for word in (NetworkPolicy.OFFLINE, NetworkPolicy.NO_TELEMETRY):
        await bench.engine.set_policy(word)
        for cartridge in ("left", "right"):
            assert await bench.call("policy", cartridge) == _answer(word.value.encode())


async def cancel(bench: Bench, faults: Faults) -> None:
    """A request is cancelled while its argument is open: its handler hears of it, its neighbour goes on."""
    before = await _heard(bench)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_echo_together, bench, [("right", LARGER)])
        outcome = await bench.call("hold", "left", whole=False, cancel=True)
    assert outcome.ended == "cancelled"
    await bench.settled()
    # Our switch ends the body with an ERR besides, which is heard where CANCEL is not.
    is_heard = "P2" not in faults or bench.role.switch is Kind.OURS
    await _check_heard(bench, before + is_heard)


async def cancel_answer(bench: Bench, faults: Faults) -> None:
    """A request is cancelled in mid-answer: its handler hears of it, and may write on without blocking."""
    before = await _heard(bench)
    outcome = await bench.call("pour", "left", cancel=True)
    assert outcome.ended == "cancelled"
    await bench.settled()
    await _check_heard(bench, before + ("P2" not in faults))


async def crash(bench: Bench, faults: Faults) -> None:
    """A cartridge is gone in mid-answer; its neighbour is not, and the next request is served by a new process."""
    is_untold = "P4" in faults and bench.role.switch is Kind.PEER
    outcome = await bench.call("die", "left", **_untold("P4", faults if is_untold else ()))
    assert outcome.logs == [("info", "dying", None)]
    if is_untold:
        assert outcome.ended == "untold"
    else:
        assert outcome.failure is not None
        assert (outcome.ended, *outcome.failure[:2]) == ("err", "CARTRIDGE_DIED", "environment")
        assert "P4" in faults or f"status {EXIT_STATUS}" in outcome.failure[2]
    await bench.settled()
    await _echo_together(bench, [("right", b"neighbour"), ("left", b"again")])


async def host_crash(bench: Bench, faults: Faults) -> None:
    """A host is killed with a request on it: the request ends, nothing is left of the host, another takes its slot."""
    outcomes: list[Outcome] = []

    async def hold() -> None:
        outcomes.append(await bench.call("hold", "left", whole=False))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        await bench.until_live(cap("hold", "left"))
        await bench.kill_host("near")
    [outcome] = outcomes
    if "P5" in faults:
        assert outcome.ended == "master_died"
    else:
        assert outcome.failure is not None
        assert (outcome.ended, *outcome.failure[:2]) == ("err", "MASTER_DIED", "environment")
    await bench.settled()
    await _echo_together(bench, [("far", b"elsewhere")])
    await bench.start_host("near")
    await _echo_together(bench, [("left", b"back"), ("right", b"back")])


CASES: dict[str, Case] = {
    "small": small,
    "large": large,
    "shipped": shipped,
    "sequence": sequence,
    "progress": progress,
    "error": error,
    "peer-call": peer_call,
    "peer-call-across": peer_call_across,
    "peer-call-long": peer_call_long,
    "peer-call-nobody": peer_call_nobody,
    "two": two,
    "policy": policy,
    "cancel": cancel,
    "cancel-answer": cancel_answer,
    "crash": crash,
    "host-crash": host_crash,
}

FAULTS: Mapping[tuple[str, str], Faults] = {
    ("a", "error"): ["P1"],
    ("d", "error"): ["P1"],
    ("a", "peer-call-across"): ["P1"],
    ("b", "peer-call"): ["P3"],
    ("d", "peer-call"): ["P3"],
    ("b", "peer-call-across"): ["P6"],
    ("d", "peer-call-across"): ["P1", "P6"],
    ("a", "peer-call-long"): ["P7"],
    ("d", "peer-call-long"): ["P2", "P7"],
    ("a", "peer-call-nobody"): ["P1"],
    ("b", "peer-call-nobody"): ["P8"],
    ("c", "peer-call-nobody"): ["P8"],
    ("d", "peer-call-nobody"): ["P1"],
    ("b", "cancel"): ["P2", "P5"],
    ("c", "cancel"): ["P5"],
    ("d", "cancel"): ["P2"],
    ("b", "cancel-answer"): ["P2", "P5"],
    ("c", "cancel-answer"): ["P5"],
    ("d", "cancel-answer"): ["P2"],
    ("b", "crash"): ["P4"],
    ("d", "crash"): ["P4"],
    ("b", "host-crash"): ["P5"],
    ("c", "host-crash"): ["P5"],
}
"""The faults that show, by role and case."""


def _answer(value: bytes, logs: Sequence[Log] = ()) -> Outcome:
    return Outcome("end", value, None, list(logs))


def _untold(fault: str, faults: Faults) -> dict[str, Any]:
    return {"patience": SILENCE} if fault in faults else {}


async def _heard(bench: Bench) -> int:
    outcome = await bench.call("heard", "left")
    return int(outcome.value or b"")


async def _check_heard(bench: Bench, wanted: int) -> None:
    """Wait for a handler to hear of its cancel; the switch may have done with the request before."""

    async def is_heard() -> bool:
        return await _heard(bench) >= wanted

    await until(is_heard)
    assert await _heard(bench) == wanted


def _to_call(function: str, cartridge: str, data: bytes = b"") -> bytes:
    return cap(function, cartridge).encode() + b"\n" + data


def _check_failure(outcome: Outcome, faults: Faults) -> None:
    code, attribution, message = FAILURE
    assert outcome.failure is not None
    assert (outcome.ended, *outcome.failure[:2]) == (
        ("err", "HANDLER_ERROR", "internal") if "P1" in faults else ("err", code, attribution)
    )
    assert message in outcome.failure[2]


async def _echo_together(bench: Bench, asked: Sequence[tuple[str, bytes]]) -> None:
    found: dict[tuple[str, bytes], Outcome] = {}

    async def ask(cartridge: str, data: bytes) -> None:
        found[cartridge, data] = await bench.call("echo", cartridge, data)

    async with trio.open_nursery() as nursery:
        for cartridge, data in asked:
            nursery.start_soon(ask, cartridge, data)
    wrong = {key: outcome for key, outcome in found.items() if outcome != _answer(key[1])}
    assert wrong == {}, wrong
