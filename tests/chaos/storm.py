"""The driver: callers that ask, read, stall and cancel under a seed, and what is counted of them."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import trio

from capdag.client import Argument, Client
from capdag.errors import RequestFailedError
from capdag.host import CartridgeRecord, HostSettings
from capdag.relay import Request, Switch
from capdag.wire import TERMINAL_TYPES, FrameView
from tests.chaos.cartridge import SCRIPT, TRAITS
from tests.misbehave import CALL, GOOD, cap_object, environment

SETTINGS = HostSettings(
    handshake_timeout=8,
    identity_timeout=8,
    first_pause=0.05,
    longest_pause=0.4,
    heartbeat_interval=1.0,
    heartbeat_timeout=0.8,
    cancel_grace_idle=0.3,
    cancel_grace_busy=0.6,
    call_grace=3.0,
    stop_grace=0.4,
    exit_patience=0.1,
    republish_interval=0.2,
)

CARTRIDGES = 20
CALLERS = 200

_GOOD = 1
"""The number of the cartridge that serves GOOD and CALL, too."""

_SELF_CALLERS = 3
"""The first ones, _GOOD among them, call what they serve themselves."""

_CALM = ("echo", "pieces", "hang", "late")
_SURVIVED = (
    "progress", "checksum", "deaf", "afterwards", "grandchild", "flood", "twice", "stranger", "greedy", "after-end",
    "streams", "fat", "unfinished-call",
)  # fmt: skip
_DEADLY = tuple(name for name in SCRIPT if name not in ("call", *_CALM, *_SURVIVED))


class Totals(msgspec.Struct):
    """What a run has seen. `wrong` names each request that did not have exactly one terminal, its last frame."""

    frames: int = 0
    requests: int = 0
    cancelled: int = 0
    terminals: int = 0
    starts: int = 0
    ends: Counter[str] = msgspec.field(default_factory=Counter)
    wrong: list[str] = msgspec.field(default_factory=list)

    @property
    def events(self) -> int:
        """Frames that callers got, requests, cancels, and starts of processes."""
        return self.frames + self.requests + self.cancelled + self.starts


class Watch:
    """What one request got."""

    def __init__(self) -> None:
        self.terminals = 0
        self.after = 0


class WatchedSwitch:
    """A switch that counts what each caller is given, before the client sees it."""

    def __init__(self, switch: Switch, totals: Totals) -> None:
        self._switch = switch
        self._totals = totals
        self.watches: list[tuple[str, Watch]] = []

    def open_request(self, cap: str, deliver: Any, preferred: str | None = None, **options: Any) -> Request:
        """Open a request of the real switch."""
        watch = Watch()

        def counted(batch: list[FrameView]) -> None:
            for view in batch:
                self._totals.frames += 1
                watch.after += watch.terminals
                watch.terminals += view.type in TERMINAL_TYPES
            deliver(batch)

        request = self._switch.open_request(cap, counted, preferred, **options)
        self._totals.requests += 1
        self.watches.append((f"{cap} XID {request.xid}", watch))
        return request

    def settle(self) -> None:
        """Bring the requests that have been watched into the totals."""
        for name, watch in self.watches:
            self._totals.terminals += watch.terminals
            if watch.terminals != 1 or watch.after:
                self._totals.wrong.append(f"{name}: {watch.terminals} terminals, {watch.after} frames after the first")
        self.watches.clear()


def cap_of(number: int) -> str:
    """Return the cap whose requests a cartridge misbehaves at."""
    return f"cap:in=media:octets;number={number};out=media:octets;scripted"


def records(random: Random) -> list[CartridgeRecord]:
    """Return 20 cartridges; a third of them with traits. What one calls mostly misbehaves; three call themselves."""
    found = []
    for number in range(CARTRIDGES):
        traits = [random.choice(TRAITS)] if number % 3 == 0 else []
        caps = [cap_of(number), *([GOOD, CALL] if number == _GOOD else [])]
        called = GOOD if random.random() < 0.3 else cap_of(random.randrange(CARTRIDGES))
        if number < _SELF_CALLERS:
            called = GOOD if number == _GOOD else cap_of(number)
        found.append(
            CartridgeRecord(
                f"c{number}",
                [sys.executable, "-S", str(Path(__file__).with_name("cartridge.py")), *traits],
                [cap_object(cap) for cap in caps],
                {"caps": caps, "called": called},
                environment(),
            )
        )
    return found


class Storm:
    """200 callers until a time; each draws what it does from a generator of its own, made from the seed."""

    def __init__(self, switch: Switch, seed: int, totals: Totals) -> None:
        self.totals = totals
        self._watched = WatchedSwitch(switch, self.totals)
        self._client = Client(self._watched)  # type: ignore[arg-type]
        self._seed = seed

    async def blow(self, seconds: float) -> None:
        """Run all callers; each ends the request it has begun. Totals are complete after `settle`."""
        until = trio.current_time() + seconds
        async with trio.open_nursery() as nursery:
            for number in range(CALLERS):
                nursery.start_soon(self._ask_until, until, Random(self._seed * 1000 + number))

    def settle(self) -> None:
        """Count terminals, once nothing is on its way any more."""
        self._watched.settle()

    async def _ask_until(self, until: float, random: Random) -> None:
        while trio.current_time() < until:
            cap = random.choice([GOOD, CALL, *map(cap_of, range(CARTRIDGES))])
            script = _draw(random) + b" " + b"x" * random.choice([0, 100, 5000, 100_000])
            patience = random.choice([0.0, 0.02, 0.3, 2.0]) if random.random() < 0.3 else 4.0
            with trio.move_on_after(patience) as scope:
                await self._ask(cap, script, random)
            self.totals.cancelled += scope.cancelled_caught

    async def _ask(self, cap: str, script: bytes, random: Random) -> None:
        try:
            async with self._client.call(cap, [Argument("media:octets", script)]) as call:
                async for _ in call.batches():
                    if random.random() < 0.05:
                        await trio.sleep(random.random() / 20)
                    if random.random() < 0.03:
                        self.totals.cancelled += 1
                        return
            self.totals.ends["answered"] += 1
        except RequestFailedError as error:
            self.totals.ends[error.code] += 1
            await trio.sleep(random.random() / 20)


def _draw(random: Random) -> bytes:
    share = random.random()
    if share < 0.2:
        return b"call " + _draw(random)
    if share < 0.7:
        return random.choice(_CALM).encode()
    return random.choice(_SURVIVED if share < 0.97 else _DEADLY).encode()
