"""The two switches with a caller on top, ours and the public package's, under one interface."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import trio

from capdag.client import Answer, Argument, CallEvent, Client, Logged, Value
from capdag.errors import RequestFailedError
from capdag.relay import Switch, SwitchSettings, open_switch
from capdag.transport import UnixListener, socket_link
from capdag.wire import USER_CANCEL, NetworkPolicy
from tests.interop.vocabulary import OCTETS

HERE = Path(__file__).parent
PEER_PYTHON = HERE.parents[1] / ".venv-peer" / "bin" / "python"

CANCEL_DEADLINE = 0.5
"""Seconds that our switch gives a host that ignores CANCEL."""

PATIENCE = 30.0

POSITION = ("queued", "dequeued")
"""Levels of LOG by which our switch tells a caller where it stands in line: a cartridge that does not run takes one
request at first."""


Log = tuple[str, str, float | None]
"""Level, message and progress."""


class Outcome(NamedTuple):
    """What came of a call.

    `ended`: end, err, cancelled (by us), master_died (told by the table alone), or untold: nothing came for a while.
    """

    ended: str
    value: bytes | None = None
    items: list[Any] | None = None
    logs: Sequence[Log] = []
    failure: tuple[str, str, str] | None = None


class Engine(Protocol):
    """A switch that is called.

    An argument that is not `whole` stays open; with `cancel` the call is cancelled at the first LOG or CHUNK. Without
    a word for `patience` seconds it is given up as untold.
    """

    async def accept(self, name: str) -> None: ...

    async def serves(self, cap: str) -> bool: ...

    async def set_policy(self, policy: NetworkPolicy) -> None: ...

    async def live(self) -> list[str]: ...

    async def held(self) -> int: ...

    async def call(
        self,
        cap: str,
        argument: bytes = b"",
        *,
        items: Sequence[Any] | None = None,
        whole: bool = True,
        cancel: bool = False,
        patience: float = PATIENCE,
    ) -> Outcome: ...


class OurEngine:
    """Our switch and client, in this process."""

    def __init__(self, switch: Switch, folder: Path, nursery: trio.Nursery) -> None:
        self._switch = switch
        self._client = Client(switch)
        self._folder = folder
        self._nursery = nursery

    async def accept(self, name: str) -> None:
        """Take in the host that connects to FOLDER/name.sock."""
        with UnixListener(self._folder / f"{name}.sock") as listener:
            link = socket_link(await listener.accept(), name)
        self._nursery.start_soon(link.run, self._switch.attach(link, name))

    async def serves(self, cap: str) -> bool:
        """Tell whether a cap is served, by its text."""
        return cap in [capability.text for capability in self._client.capabilities()]

    async def set_policy(self, policy: NetworkPolicy) -> None:
        """Put a network policy in force."""
        self._switch.set_policy(policy)

    async def live(self) -> list[str]:
        """Return the caps of the requests in the table."""
        return [row["cap_urn"] for row in self._switch.snapshot()["requests"]["active"]]

    async def held(self) -> int:
        """Return how many requests and calls the hosts say they hold. The public package's say nothing."""
        hosts = self._switch.snapshot()["hosts"].values()
        stats = [host["protocol_stats"] or {} for host in hosts if host["state"] != "dead"]
        return sum(host.get("incoming_rxids", 0) + host.get("outgoing_rids", 0) for host in stats)

    async def call(
        self,
        cap: str,
        argument: bytes = b"",
        *,
        items: Sequence[Any] | None = None,
        whole: bool = True,
        cancel: bool = False,
        patience: float = PATIENCE,
    ) -> Outcome:
        """Call a cap."""
        data = argument if items is None and whole else _values(items or [argument], whole)
        answer, ended, failure = Answer(), "untold", None
        async with self._client.call(cap, [Argument(OCTETS, data, items is not None)]) as call:
            try:
                with trio.move_on_after(patience) as silence:
                    async for batch in call.batches():
                        silence.deadline = trio.current_time() + patience
                        for event in batch:
                            answer.add(event)
                        if cancel and any(map(_is_sign, batch)):
                            call.cancel(USER_CANCEL)
                    ended = "end"
            except RequestFailedError as error:
                ended = "cancelled" if cancel else "err"
                failure = (error.code, str(error.attribution), error.message)
        told = [record for record in answer.logs if record.level not in POSITION]
        logs = [(record.level, record.message, record.progress) for record in told]
        streams = [stream for stream in answer.streams if stream.head.output is None]
        if streams and streams[0].head.is_sequence:
            return Outcome(ended, None, streams[0].values, logs, failure)
        return Outcome(ended, answer.value or b"", None, logs, failure)


def _is_sign(event: CallEvent) -> bool:
    return isinstance(event, (Logged, Value))


async def _values(values: Sequence[Any], is_whole: bool) -> AsyncIterator[Any]:
    for value in values:
        yield value
    if not is_whole:
        await trio.sleep_forever()


@asynccontextmanager
async def our_engine(folder: Path) -> AsyncIterator[OurEngine]:
    """Run our switch for the length of the block."""
    settings = SwitchSettings(cancel_deadline=CANCEL_DEADLINE)
    async with trio.open_nursery() as nursery, open_switch(settings) as switch:
        yield OurEngine(switch, folder, nursery)


class PeerEngine:
    """The public package's switch, in a process that is told what to do by JSON lines."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None
        self._process = process
        self._stdin = process.stdin
        self._writing = trio.Lock()
        self._numbers = count(1)
        self._waiting: dict[int, trio.MemorySendChannel[dict[str, Any]]] = {}

    async def read_answers(self) -> None:
        """Hand every answer to who waits for it, until the process ends."""
        assert self._process.stdout is not None
        rest = b""
        async with self._process.stdout as stdout:
            async for data in stdout:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    answer = json.loads(line)
                    self._waiting[answer["id"]].send_nowait(answer)
        for waiting in self._waiting.values():
            waiting.close()

    async def _do(self, what: str, **words: Any) -> dict[str, Any]:
        number = next(self._numbers)
        send, receive = trio.open_memory_channel[dict[str, Any]](1)
        self._waiting[number] = send
        try:
            async with self._writing:
                await self._stdin.send_all(json.dumps({"id": number, "do": what, **words}).encode() + b"\n")
            answer = await receive.receive()
        finally:
            del self._waiting[number]
        assert "error" not in answer, answer["error"]
        return answer

    async def accept(self, name: str) -> None:
        """Take in the host that connects to FOLDER/name.sock."""
        await self._do("accept", name=name)

    async def serves(self, cap: str) -> bool:
        """Tell whether a cap is served, by its text."""
        return bool((await self._do("serves", cap=cap))["serves"])

    async def set_policy(self, policy: NetworkPolicy) -> None:
        """Put a network policy in force."""
        await self._do("set_policy", policy=policy.value)

    async def live(self) -> list[str]:
        """Return the caps of the requests in the table."""
        return list((await self._do("live"))["live"])

    async def held(self) -> int:
        """Return how many requests and calls the hosts say they hold. The public package's say nothing."""
        return int((await self._do("held"))["held"])

    async def call(
        self,
        cap: str,
        argument: bytes = b"",
        *,
        items: Sequence[Any] | None = None,
        whole: bool = True,
        cancel: bool = False,
        patience: float = PATIENCE,
    ) -> Outcome:
        """Call a cap."""
        text = base64.b64encode(argument).decode()
        words = {"items": items, "whole": whole, "cancel": cancel, "patience": patience}
        said = await self._do("call", cap=cap, argument=text, **words)
        logs = [(level, message, progress) for level, message, progress in said["logs"]]
        failure = tuple(said["failure"]) if said["failure"] else None
        value = None if said["value"] is None else base64.b64decode(said["value"])
        return Outcome(said["ended"], value, said["items"], logs, failure)


@asynccontextmanager
async def peer_engine(folder: Path) -> AsyncIterator[PeerEngine]:
    """Run the public package's switch for the length of the block. It ends with its stdin."""
    command = [str(PEER_PYTHON), "-E", str(HERE / "peer_switch.py"), str(folder)]
    async with trio.open_nursery() as nursery:
        run = partial(trio.run_process, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, check=False)
        process: trio.Process = await nursery.start(run)
        engine = PeerEngine(process)
        nursery.start_soon(engine.read_answers)
        yield engine
        assert process.stdin is not None
        await process.stdin.aclose()
