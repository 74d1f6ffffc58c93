"""The meta of END, ERR, LOG and CANCEL, read and written (protocol-spec/wire.md, Terminal metadata)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from capdag.errors import CODES, AttributionClass, RemoteProtocolError, RequestFailedError

from .frame import FixedMeta, Frame, FrameType, MessageId, show_value


class Failure(NamedTuple):
    """Why a request ended with ERR. `detail`: param, limit, seen, retryable, stderr, where known."""

    code: str
    attribution: AttributionClass
    message: str
    detail: Mapping[str, Any] | None = None

    def error(self) -> RequestFailedError:
        """Return the exception that tells a caller of this failure."""
        return RequestFailedError(self.code, self.attribution, self.message, self.detail)


class CancelReason(NamedTuple):
    """Why a request is cancelled: the code and class of the ERR it will end with."""

    code: str = "CANCELLED"
    attribution: AttributionClass = AttributionClass.USER
    message: str = "the request was cancelled by its caller"

    def failure(self) -> Failure:
        """Return the terminal this reason leads to."""
        return Failure(self.code, self.attribution, self.message)


USER_CANCEL = CancelReason()
HOST_ABORT = CancelReason("ABORTED", AttributionClass.ENVIRONMENT, "the host is shutting down")


def _text(meta: Mapping[str, Any], key: str) -> str | None:
    value = meta.get(key)
    return value if isinstance(value, str) and value else None


def _attribution(meta: Mapping[str, Any]) -> AttributionClass | None:
    value = meta.get("attribution_class")
    try:
        return AttributionClass(value) if isinstance(value, str) else None
    except ValueError:
        return None


def read_failure(meta: Mapping[str, Any]) -> Failure:
    """Read an ERR. Raises RemoteProtocolError if code, message or class is missing or unknown: never guessed.

    The argument that it blames (`arg_urn`) is the detail's param, if that has none.
    """
    code, message, attribution = _text(meta, "code"), _text(meta, "message"), _attribution(meta)
    if code is None or message is None:
        raise RemoteProtocolError(
            f"ERR needs a code and a message as text, not {show_value(meta.get('code'))}, "
            f"{show_value(meta.get('message'))}"
        )
    if attribution is None:
        raise RemoteProtocolError(
            f"ERR {show_value(code)} has no known attribution_class: {show_value(meta.get('attribution_class'))}"
        )
    detail, blamed = meta.get("detail"), _text(meta, "arg_urn")
    if not isinstance(detail, dict):
        detail = None
    if blamed is not None:
        detail = {"param": blamed, **(detail or {})}
    return Failure(code, attribution, message, detail)


def failure_of(meta: Mapping[str, Any]) -> Failure:
    """Read an ERR for its requester: one that is malformed still ends the request, as PROTOCOL_VIOLATION."""
    try:
        return read_failure(meta)
    except RemoteProtocolError as error:
        return Failure(
            "PROTOCOL_VIOLATION", AttributionClass.INTERNAL, f"the request ended with a malformed ERR: {error}"
        )


def err_frame(rid: MessageId, failure: Failure, *, xid: MessageId | None = None, seq: int = 0) -> Frame:
    """Build the ERR that ends a request."""
    meta: dict[str, Any] = {
        "code": failure.code,
        "message": failure.message,
        "attribution_class": failure.attribution.value,
    }
    if failure.detail:
        meta["detail"] = dict(failure.detail)
    return Frame(FrameType.ERR, rid, seq, routing_id=xid, meta=meta)


def end_frame(rid: MessageId, *, xid: MessageId | None = None, seq: int = 0, message: str | None = None) -> Frame:
    """Build the END of a successful response: exit_code 0, progress 1.0."""
    meta = {**_SUCCESS, "message": message} if message else _SUCCESS
    return Frame(FrameType.END, rid, seq, routing_id=xid, meta=meta, eof=True)


_SUCCESS = FixedMeta({"exit_code": 0, "progress": 1.0})


def body_end_frame(rid: MessageId, *, xid: MessageId | None = None, seq: int = 0) -> Frame:
    """Build the END of a request's body, which has no meta."""
    return Frame(FrameType.END, rid, seq, routing_id=xid, eof=True)


def is_success(meta: Mapping[str, Any]) -> bool:
    """True if an END says success: exit_code 0. Absent or other is not success."""
    code = meta.get("exit_code")
    return type(code) is int and code == 0


def failure_of_end(meta: Mapping[str, Any]) -> Failure | None:
    """Read an END for its requester: how its request has failed, None if it says success."""
    if is_success(meta):
        return None
    said = f"exit_code {show_value(meta['exit_code'])}" if "exit_code" in meta else "no exit_code"
    message = _text(meta, "message") or f"the handler ended with {said}"
    return Failure("HANDLER_ERROR", CODES["HANDLER_ERROR"].attribution, message)


class LogRecord(NamedTuple):
    """One LOG frame: level `progress` carries `progress` (0..1) and no class; every other level a class."""

    level: str
    message: str
    progress: float | None = None
    attribution: AttributionClass | None = None
    extra: Mapping[str, Any] | None = None


_LOG_KEYS = {"level", "message", "progress", "attribution_class"}


def read_progress(meta: Mapping[str, Any]) -> float | None:
    """Return how far something is, None if that is not said as a number from 0 to 1: it is never guessed."""
    number = meta.get("progress")
    return float(number) if isinstance(number, (int, float)) and 0 <= number <= 1 else None


def read_log(meta: Mapping[str, Any]) -> LogRecord:
    """Read a LOG; a progress that is no number from 0 to 1 reads as none.

    Raises RemoteProtocolError for a missing level, message or class.
    """
    level, message = _text(meta, "level"), _text(meta, "message")
    if level is None or message is None:
        key = "level" if level is None else "message"
        raise RemoteProtocolError(f"LOG needs {key} as a non-empty text, not {show_value(meta.get(key))}")
    attribution = _attribution(meta)
    if level != "progress" and attribution is None:
        raise RemoteProtocolError(
            f"LOG {show_value(level)} has no known attribution_class: {show_value(meta.get('attribution_class'))}"
        )
    progress = read_progress(meta) if level == "progress" else None
    extra = {key: value for key, value in meta.items() if key not in _LOG_KEYS}
    return LogRecord(level, message, progress, attribution, extra or None)


def log_frame(rid: MessageId, record: LogRecord, *, xid: MessageId | None = None, seq: int = 0) -> Frame:
    """Build a LOG frame."""
    meta: dict[str, Any] = {"level": record.level, "message": record.message}
    if record.level == "progress":
        meta["progress"] = 0.0 if record.progress is None else record.progress
    else:
        meta["attribution_class"] = (record.attribution or AttributionClass.INTERNAL).value
    meta.update(record.extra or {})
    return Frame(FrameType.LOG, rid, seq, routing_id=xid, meta=meta)


def cancel_frame(
    rid: MessageId, reason: CancelReason, *, xid: MessageId | None = None, force_kill: bool = False
) -> Frame:
    """Build a CANCEL."""
    meta = _CANCEL_METAS.get(reason) or _cancel_meta(reason)
    return Frame(FrameType.CANCEL, rid, routing_id=xid, force_kill=force_kill, meta=meta)


def _cancel_meta(reason: CancelReason) -> dict[str, Any]:
    return {"code": reason.code, "attribution_class": reason.attribution.value, "message": reason.message}


_CANCEL_METAS = {reason: FixedMeta(_cancel_meta(reason)) for reason in (USER_CANCEL, HOST_ABORT)}


def read_cancel(meta: Mapping[str, Any]) -> CancelReason:
    """Read a CANCEL. Parts that are absent or malformed read as none given: CANCELLED / internal."""
    code = _text(meta, "code")
    attribution = _attribution(meta) or AttributionClass.INTERNAL
    return CancelReason(code or "CANCELLED", attribution, _text(meta, "message") or "the request was cancelled")
