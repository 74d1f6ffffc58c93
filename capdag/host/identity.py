"""The identity cap, served by the host itself without any process (protocol-spec/host.md, Identity)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from capdag.wire import (
    REQUEST,
    RESPONSE,
    Failure,
    Frame,
    FrameType,
    FrameView,
    MessageId,
    SeqAssigner,
    credit_frame,
    end_frame,
    err_frame,
    read_cancel,
    view_of,
)
from capdag.wire.blocks import Parcel, single_frames

from .flows import Hold

_MARK = "echo-"
"""Before the stream ids of the answer: the two directions of a call must not share them."""

_PASSED_ON = frozenset({FrameType.STREAM_START, FrameType.CHUNK, FrameType.STREAM_END, FrameType.END})


class _Request:
    """One request being echoed."""

    def __init__(self, window: int) -> None:
        self.hold = Hold(window)
        self.seq = SeqAssigner()


class IdentityEcho:
    """The `Port` of the host's own identity cartridge: every stream comes back as it went in.

    An argument CHUNK is granted only when its echo has gone out under credit, so that nothing piles up here.
    """

    bytes_queued = 0

    def __init__(self, answer: Callable[[list[FrameView]], None], window: int) -> None:
        self._answer = answer
        self._window = window
        self._requests: dict[tuple[MessageId, MessageId | None], _Request] = {}

    def send(self, batch: Sequence[Parcel]) -> None:
        """Take frames of requests and give the frames of their answers."""
        out: list[Frame] = []
        for view in single_frames(batch):
            self._take(view, out)
        if out:
            self._answer([view_of(frame) for frame in out])

    def _take(self, view: FrameView, out: list[Frame]) -> None:
        flow = (view.id, view.xid)
        if view.type is FrameType.REQ:
            self._requests[flow] = _Request(self._window)
            return
        request = self._requests.get(flow)
        if request is None:
            return
        if view.type in _PASSED_ON:
            if request.hold.offer(view):
                self._echo(request, view, out)
        elif view.type is FrameType.CREDIT and view.meta.get("credit_dir") == RESPONSE:
            stream = (view.stream_id or "").removeprefix(_MARK) or None
            for freed in request.hold.grant(stream, view.fields[19]):
                self._echo(request, freed, out)
        elif view.type is FrameType.CANCEL:
            del self._requests[flow]
            self._number(request, err_frame(view.id, read_cancel(view.meta).failure(), xid=view.xid), out)
        elif view.type is FrameType.ERR:  # the requester gave up its own body: it is told so
            del self._requests[flow]
            self._number(request, Frame(FrameType.ERR, view.id, routing_id=view.xid, meta=dict(view.meta)), out)

    def _echo(self, request: _Request, view: FrameView, out: list[Frame]) -> None:
        if view.type is FrameType.END:
            del self._requests[view.id, view.xid]
            self._number(request, end_frame(view.id, xid=view.xid), out)
            return
        frame = view.frame()
        frame.raw, frame.stream_id = None, f"{_MARK}{view.stream_id}"
        self._number(request, frame, out)
        if view.type is FrameType.CHUNK and view.stream_id is not None:
            out.append(credit_frame(view.id, view.stream_id, 1, REQUEST, xid=view.xid))

    @staticmethod
    def _number(request: _Request, frame: Frame, out: list[Frame]) -> None:
        request.seq.assign(frame)
        out.append(frame)

    def kill(self, failure: Failure) -> None:
        """There is no process to kill: a cancelled request has already ended."""

    def stop(self) -> None:
        """There is no process to stop."""

    def wake(self) -> None:
        """There are no deadlines here."""
