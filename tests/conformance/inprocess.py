"""Runs a cartridge of `plain.py` inside the test: for the kit it is a process, only quicker."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio
import trio.testing

from capdag.conformance import CASES, Case, Report, Settings, run_cases
from capdag.conformance._launch import Said
from capdag.errors import RemoteProtocolError
from capdag.transport import ExitStatus, Link, Receiver
from capdag.wire import Frame, inspect, view_of
from capdag.wire.blocks import Parcel, single_frames
from tests.conformance.plain import Plain


class InProcess:
    """A `Target` and its `Link`. Frames go by the inbox of a task, as they would by pipes: never inside a call."""

    name = "in process"

    def __init__(self, cartridge: Plain, receiver: Receiver) -> None:
        self.violation: RemoteProtocolError | None = None
        self._cartridge = cartridge
        self._receiver = receiver
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = trio.Event()
        self._torn = False
        self._over = trio.Event()

    @property
    def link(self) -> Link:
        return self

    def send(self, batch: Sequence[Parcel]) -> None:
        for view in single_frames(batch):
            self._post(lambda view=view: self._cartridge.take(view))  # type: ignore[misc]

    def close(self) -> None:
        """Nothing is left to close."""

    def _post(self, call: Callable[[], None]) -> None:
        self._inbox.append(call)
        self._wake.set()

    def send_raw(self, data: bytes) -> None:
        self._torn = True
        self._post(lambda: self._cartridge.raw(data))

    def close_stdin(self) -> None:
        self._post(lambda: self._cartridge.eof(torn=self._torn))

    def terminate(self) -> None:
        self._post(self._cartridge.terminate)

    def exit_status(self) -> ExitStatus | None:
        cartridge = self._cartridge
        ended = cartridge.exit is not None or cartridge.signal is not None
        return ExitStatus(code=cartridge.exit, signal=cartridge.signal) if ended else None

    async def wait_exit(self) -> ExitStatus:
        await self._over.wait()
        return self.exit_status() or ExitStatus()

    def left_behind(self) -> Sequence[int]:
        return self._cartridge.children

    def stderr(self) -> str:
        return ""

    async def run(self) -> None:
        self._say()
        while self.exit_status() is None:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._inbox and self.exit_status() is None:
                self._inbox.popleft()()
                self._say()
        self._over.set()
        if self.violation is None:
            self._receiver.closed("the other side closed the link")

    def _say(self) -> None:
        said, self._cartridge.out = self._cartridge.out, []
        for one in said:
            if self.violation is None:
                self._deliver(one)

    def _deliver(self, one: Frame | bytes) -> None:
        try:
            view = view_of(one) if isinstance(one, Frame) else inspect(one)
        except RemoteProtocolError as error:
            self.violation = error
            self._receiver.closed(str(error))
        else:
            self._receiver.deliver([view])


class InProcessStarter:
    """A `Starter` of one kind of cartridge."""

    def __init__(self, kind: type[Plain]) -> None:
        self._kind = kind

    @asynccontextmanager
    async def start(self, receiver: Receiver) -> AsyncIterator[InProcess]:
        target = InProcess(self._kind(), receiver)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(target.run)
            yield target
            nursery.cancel_scope.cancel()

    async def say(self, argument: str) -> Said:
        code, stdout = self._kind().printed()
        return Said(None if code is None else ExitStatus(code=code), stdout, "")


async def _check(kind: type[Plain], cases: Sequence[Case], settings: Settings) -> Report:
    return await run_cases(InProcessStarter(kind), ["plain", kind.__name__], settings, cases)


def check_plain(kind: type[Plain], cases: Sequence[Case] = CASES, settings: Settings | None = None) -> Report:
    """Hold a kind of cartridge to the cases, in no time."""
    return trio.run(_check, kind, cases, settings or Settings(), clock=trio.testing.MockClock(autojump_threshold=0))
