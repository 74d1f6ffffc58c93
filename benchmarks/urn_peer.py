"""The public `capdag` package as a black box: answers timing questions, one JSON line each, on its public API alone.

Runs in that package's own environment (`.venv-peer`), never in ours; `benchmarks.urn` asks the questions.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import tracemalloc
from time import perf_counter
from typing import Any

from capdag.bifaci.frame import Frame, FrameType, MessageId  # type: ignore[import-not-found]
from capdag.bifaci.io import FrameReader, FrameWriter  # type: ignore[import-not-found]
from capdag.bifaci.policy import HostPolicy, NetworkPolicy  # type: ignore[import-not-found]
from capdag.bifaci.relay_switch import NoHandlerError, RelaySwitch, SocketPair  # type: ignore[import-not-found]

from capdag import CapUrn  # type: ignore[attr-defined]

_HOST_LIMITS = (3_670_016, 262_144)
"""max_frame and max_chunk that the host below announces."""

_CAPS_A_HOST = 1_000
"""An advertisement is one frame: more would not fit."""


class Host:
    """A host that advertises caps, sends identity back, and takes every request without a word."""

    def __init__(self, name: str, caps: list[str]) -> None:
        near, far = socket.socketpair()
        self.pair = SocketPair(name, near.makefile("rb"), near.makefile("wb"))
        self._reader, self._writer = FrameReader(far.makefile("rb")), FrameWriter(far.makefile("wb"))
        notice = Frame.relay_notify(json.dumps(_manifest(caps)).encode(), *_HOST_LIMITS)
        threading.Thread(target=self._run, args=(notice,), daemon=True).start()

    def _run(self, notice: Any) -> None:
        self._writer.write(notice)
        echoed: Any = None
        while (frame := self._reader.read()) is not None:
            if frame.frame_type == FrameType.REQ and frame.cap == "cap:effect=none":
                echoed = frame.id
            elif frame.id == echoed and frame.frame_type == FrameType.END:
                self._writer.write(Frame.end_ok(frame.id))
            elif frame.id == echoed and frame.frame_type != FrameType.CREDIT:
                self._writer.write(frame)


def _manifest(caps: list[str]) -> dict[str, Any]:
    """Return the least that the package's switch takes as a host's advertisement."""
    described = [{"urn": cap, "title": "cap", "aliases": [f"c{number}"]} for number, cap in enumerate(caps)]
    idle = {"declared": 0, "configured": 0, "active": 0, "queued": 0}
    stats = {
        "running": True, "pid": None, "active_request_count": 0, "peer_request_count": 0, "memory_footprint_mb": 0,
        "memory_rss_mb": 0, "last_heartbeat_unix_seconds": None, "restart_count": 0, "protocol_drops_total": 0,
        "pools": {**dict.fromkeys(caps, idle), "all": {**idle, "caps": caps}},
    }  # fmt: skip
    install = {
        "registry_url": None, "id": "host", "channel": "release", "version": "1.0.0", "sha256": "0" * 64,
        "cap_groups": [{"name": "default", "caps": described}], "runtime_stats": stats, "lifecycle": "operational",
    }  # fmt: skip
    return {"installed_cartridges": [install]}


class Answers:
    """One method a question; each returns seconds unless it says otherwise."""

    def __init__(self) -> None:
        self._switch: Any = None

    def parse(self, texts: list[str]) -> float:
        """Parse each text once; returns the time of one."""
        start = perf_counter()
        for text in texts:
            CapUrn.from_string(text)
        return (perf_counter() - start) / len(texts)

    def dispatch(self, candidate: str, request: str, loops: int) -> float:
        """Ask one parsed cap whether it may serve another; returns the time of one."""
        cap, asked = CapUrn.from_string(candidate), CapUrn.from_string(request)
        start = perf_counter()
        for _ in range(loops):
            cap.is_dispatchable(asked)
        return (perf_counter() - start) / loops

    def hold(self, texts: list[str]) -> float:
        """Parse and keep each text; returns the bytes of one cap."""
        tracemalloc.start()
        held = [CapUrn.from_string(text) for text in texts]
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return size / len(held)

    def attach(self, caps: list[str]) -> float:
        """Make a switch with hosts that advertise these caps."""
        start = perf_counter()
        shares = [caps[begin : begin + _CAPS_A_HOST] for begin in range(0, len(caps), _CAPS_A_HOST)]
        hosts = [Host(f"host-{number}", ["cap:effect=none", *share]) for number, share in enumerate(shares)]
        self._switch = RelaySwitch([host.pair for host in hosts], HostPolicy(NetworkPolicy.NO_TELEMETRY))
        return perf_counter() - start

    def choose(self, cap: str) -> float:
        """Let the switch look for who serves a request, and say that nobody does."""
        request = Frame.req(MessageId.new_uuid(), cap, b"", "application/cbor")
        start = perf_counter()
        try:
            self._switch.send_to_master(request)
        except NoHandlerError:
            return perf_counter() - start
        raise ValueError(f"somebody serves {cap}: its time would be that of sending, too")


def main() -> None:
    """Answer until the questions end."""
    answers = Answers()
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(getattr(answers, question.pop("ask"))(**question)), flush=True)


main()
