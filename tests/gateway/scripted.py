"""The far end of a link under a test's control: a host that speaks frames and answers by a script.

It plays the protocol peer only; switch, client and gateway in front of it are the real ones.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import trio

from capdag.errors import AttributionClass
from capdag.transport import Link
from capdag.urn import CapUrn
from capdag.wire import (
    DEFAULT_LIMITS,
    IDENTITY_CAP,
    REQUEST,
    Failure,
    Frame,
    FrameType,
    FrameView,
    LogRecord,
    SendWindow,
    credit_frame,
    decode_value,
    end_frame,
    err_frame,
    fnv1a_64,
    item_payloads,
    log_frame,
    view_of,
)
from capdag.wire.notify import notify_frame

OUT = "out"


class ScriptedRequest:
    """One request as the host sees it, and the means to answer it."""

    def __init__(self, host: ScriptedHost, req: FrameView) -> None:
        self.rid, self.xid, self.cap = req.id, req.xid, req.fields[10]
        self.cancelled = trio.Event()
        """Set when CANCEL has come."""
        self._host = host
        self._body = bytearray()
        self._whole = trio.Event()
        self._seq = 0
        self._chunks = 0
        self._window = SendWindow(DEFAULT_LIMITS.initial_credit)
        self._granted = trio.Event()

    async def body(self) -> Any:
        """Wait for the whole argument and return its JSON."""
        await self._whole.wait()
        return json.loads(bytes(self._body))

    def send(self, *frames: Frame) -> None:
        """Send frames of this request's flow, numbered."""
        for frame in frames:
            frame.routing_id, frame.seq = self.xid, self._seq
            self._seq += 1
        self._host.send(*frames)

    def start(self) -> None:
        """Open the answer's stream."""
        media = str(CapUrn.parse(self.cap).out_media)
        self.send(Frame(FrameType.STREAM_START, self.rid, stream_id=OUT, media_urn=media, is_sequence=True))

    async def emit(self, *events: Any) -> None:
        """Send events under credit, those that are covered in one batch."""
        frames: list[Frame] = []
        for event in events:
            for payload in item_payloads(event, DEFAULT_LIMITS.max_chunk):
                if not self._window.take():
                    self.send(*frames)
                    frames = []
                    await self._credit()
                frames.append(self._chunk(payload))
        self.send(*frames)

    def _chunk(self, payload: bytes) -> Frame:
        frame = Frame(
            FrameType.CHUNK, self.rid, stream_id=OUT, payload=payload, chunk_index=self._chunks,
            checksum=fnv1a_64(payload),
        )  # fmt: skip
        self._chunks += 1
        return frame

    async def _credit(self) -> None:
        while not self._window.take():
            self._granted = trio.Event()
            await self._granted.wait()

    def end(self) -> None:
        """End the stream and the request."""
        self.send(Frame(FrameType.STREAM_END, self.rid, stream_id=OUT, chunk_count=self._chunks), end_frame(self.rid))

    def fail(
        self, code: str, attribution: str, message: str = "said the script", detail: Mapping[str, Any] | None = None
    ) -> None:
        """End the request with ERR."""
        self.send(err_frame(self.rid, Failure(code, AttributionClass(attribution), message, detail)))

    def progress(self, fraction: float, message: str) -> None:
        """Send a LOG of progress."""
        self.send(log_frame(self.rid, LogRecord("progress", message, fraction)))

    def take(self, view: FrameView) -> None:
        """Take a frame from the switch."""
        if view.type is FrameType.CHUNK:
            self._body += decode_value(view.fields[6])
            self._host.send(credit_frame(self.rid, str(view.stream_id), 1, REQUEST, xid=self.xid))
        elif view.type is FrameType.END:
            self._whole.set()
        elif view.type is FrameType.CREDIT:
            self._window.grant(view.fields[19])
            self._granted.set()
        elif view.type is FrameType.CANCEL:
            self.cancelled.set()


Script = Callable[[ScriptedRequest], Awaitable[None]]


class ScriptedHost:
    """Answers the attachment by itself and every other request by `script`, each in a task of its own."""

    def __init__(self, link: Link, caps: Sequence[Mapping[str, Any]], script: Script, nursery: trio.Nursery) -> None:
        self.script = script
        self.requests: list[ScriptedRequest] = []
        self.asked = trio.Event()
        self.cancelled = trio.Event()
        """Set when some request has come, and when one has been cancelled."""
        self._link = link
        self._caps = caps
        self._nursery = nursery
        self._rows: dict[Any, ScriptedRequest] = {}
        self._identity: list[FrameView] = []

    def send(self, *frames: Frame) -> None:
        """Send frames as one batch."""
        self._link.send([view_of(frame) for frame in frames])

    def advertise(self, slots: int = 0) -> None:
        """Say what this host offers; it takes `slots` requests at once, 0 for any number."""
        pool = {"declared": slots, "configured": slots, "active": 0, "queued": 0}
        caps = [{"urn": IDENTITY_CAP}, *self._caps]
        record = {
            "registry_url": None,
            "channel": "release",
            "id": "scripted",
            "version": "1",
            "cap_groups": [{"name": "scripted", "caps": caps}],
            "runtime_stats": {"running": True, "pools": {"all": pool, **{cap["urn"]: pool for cap in caps}}},
        }
        self.send(notify_frame(DEFAULT_LIMITS, [record]))

    def die(self) -> None:
        """End the link, as a host that is killed does."""
        self._link.close()

    def deliver(self, batch: Sequence[FrameView]) -> None:
        """Take frames from the switch."""
        for view in batch:
            if view.xid is None:
                self._answer_identity(view)
            elif view.type is FrameType.REQ:
                request = self._rows[view.xid] = ScriptedRequest(self, view)
                self.requests.append(request)
                self.asked.set()
                self._nursery.start_soon(self.script, request)
            else:
                self._rows[view.xid].take(view)
                if view.type is FrameType.CANCEL:
                    self.cancelled.set()

    def closed(self, reason: str) -> None:
        """The link has ended; scripts end with the nursery."""

    def _answer_identity(self, view: FrameView) -> None:
        if view.type is FrameType.POLICY:
            return
        self._identity.append(view)
        if view.type is not FrameType.END:
            return
        chunk = next(seen for seen in self._identity if seen.type is FrameType.CHUNK)
        payload = chunk.fields[6]
        self.send(
            Frame(FrameType.STREAM_START, view.id, stream_id="echo", media_urn="media:"),
            Frame(
                FrameType.CHUNK, view.id, stream_id="echo", payload=payload, chunk_index=0, checksum=fnv1a_64(payload)
            ),
            Frame(FrameType.STREAM_END, view.id, stream_id="echo", chunk_count=1),
            end_frame(view.id),
        )


def model_caps(
    model: str, *operations: str, created: int = 1_700_000_000, abilities: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the manifest's cap objects of one model, which claim `abilities`."""
    claimed = "".join(f";{ability}" for ability in abilities)
    return [
        {
            "urn": (
                f'cap:{operation};in="media:{operation}-request;enc=utf-8;fmt=json;record";model={model.lower()};'
                f'out="media:{operation}-event;list;record"{claimed}'
            ),
            "title": f"{operation} with {model}",
            "aliases": [],
            "metadata": {"model": model, "created": created, "owned_by": "scripted"},
        }
        for operation in operations or ("chat", "completion")
    ]
