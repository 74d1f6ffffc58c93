"""The exception tree and the closed table of error codes (protocol-spec/errors.md).

Every public error carries a stable `code`, an attribution class and a message that says what to do next. The same
code and class travel in ERR frames, HTTP bodies and logs; HTTP status and body type come from `CODES` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class AttributionClass(StrEnum):
    """Who has to act for a failure to go away (protocol-spec/errors.md)."""

    INPUT = "input"
    RESOURCE = "resource"
    ENVIRONMENT = "environment"
    INTERNAL = "internal"
    USER = "user"


class Retry(StrEnum):
    """What it is worth to send the same request again (protocol-spec/errors.md)."""

    NO = "no"
    """It fails in the same way until somebody changes something: the request, the set-up, or code."""
    NOW = "now"
    """What failed was one process or link, and the next may be another."""
    LATER = "later"
    """What is missing comes with time: room, a process that starts, a host."""


class CodeFacts(NamedTuple):
    """One row of the code table.

    `attribution` is the class we send with the code; `status` the HTTP status (0: the caller is gone, nothing is
    sent); `type` and `http_code` go in the HTTP body; `retry` holds as long as nothing of the answer has been seen.
    """

    attribution: AttributionClass
    status: int
    type: str
    http_code: str
    retry: Retry

    @property
    def retryable(self) -> bool:
        """True if the same request may succeed, now or later."""
        return self.retry is not Retry.NO


_A, _R = AttributionClass, Retry

CODES: Mapping[str, CodeFacts] = {
    "INVALID_REQUEST": CodeFacts(_A.INPUT, 400, "invalid_request_error", "invalid_request", _R.NO),
    "CONTEXT_LENGTH_EXCEEDED": CodeFacts(_A.INPUT, 400, "invalid_request_error", "context_length_exceeded", _R.NO),
    "NO_HANDLER": CodeFacts(_A.ENVIRONMENT, 503, "server_error", "no_handler", _R.LATER),
    "SPAWN_FAILED": CodeFacts(_A.ENVIRONMENT, 503, "server_error", "spawn_failed", _R.LATER),
    "MODEL_LOAD_FAILED": CodeFacts(_A.ENVIRONMENT, 503, "server_error", "model_load_failed", _R.NO),
    "CARTRIDGE_DIED": CodeFacts(_A.ENVIRONMENT, 502, "server_error", "cartridge_died", _R.NOW),
    "CARTRIDGE_UNHEALTHY": CodeFacts(_A.ENVIRONMENT, 502, "server_error", "cartridge_unhealthy", _R.NOW),
    "CARTRIDGE_RETIRED": CodeFacts(_A.ENVIRONMENT, 502, "server_error", "cartridge_retired", _R.NOW),
    "MASTER_DIED": CodeFacts(_A.ENVIRONMENT, 502, "server_error", "master_died", _R.NOW),
    "OOM_KILLED": CodeFacts(_A.RESOURCE, 502, "server_error", "oom_killed", _R.NOW),
    "ANSWER_TOO_LARGE": CodeFacts(_A.RESOURCE, 502, "server_error", "answer_too_large", _R.NO),
    "HANDLER_ERROR": CodeFacts(_A.INTERNAL, 502, "server_error", "handler_error", _R.NO),
    "PROTOCOL_ERROR": CodeFacts(_A.INTERNAL, 502, "server_error", "protocol_error", _R.NO),
    "PROTOCOL_VIOLATION": CodeFacts(_A.INTERNAL, 502, "server_error", "protocol_violation", _R.NO),
    "CREDIT_VIOLATION": CodeFacts(_A.INTERNAL, 502, "server_error", "credit_violation", _R.NO),
    "UNKNOWN_POOL": CodeFacts(_A.INTERNAL, 502, "server_error", "unknown_pool", _R.NO),
    "NETWORK_POLICY": CodeFacts(_A.USER, 502, "server_error", "network_policy", _R.NO),
    "NETWORK_POLICY_UNSET": CodeFacts(_A.INTERNAL, 502, "server_error", "network_policy_unset", _R.NO),
    "QUEUE_FULL": CodeFacts(_A.RESOURCE, 503, "server_error", "all_slots_busy", _R.LATER),
    "TABLE_FULL": CodeFacts(_A.RESOURCE, 503, "server_error", "all_slots_busy", _R.LATER),
    "FEED_OVERRUN": CodeFacts(_A.RESOURCE, 503, "server_error", "feed_overrun", _R.LATER),
    "DEBT_LIMIT": CodeFacts(_A.RESOURCE, 503, "server_error", "all_slots_busy", _R.LATER),
    "DEADLINE_EXCEEDED": CodeFacts(_A.RESOURCE, 504, "server_error", "deadline_exceeded", _R.NO),
    "ABORTED": CodeFacts(_A.ENVIRONMENT, 503, "server_error", "aborted", _R.LATER),
    "ABORTED_COLLATERAL": CodeFacts(_A.ENVIRONMENT, 503, "server_error", "aborted_collateral", _R.NOW),
    "CANCELLED": CodeFacts(_A.USER, 0, "server_error", "cancelled", _R.NO),
}
"""Every code this project sends, closed. A foreign cartridge may send others: see `facts_of`."""

_FOREIGN_STATUS = {_A.INPUT: 400, _A.RESOURCE: 503, _A.ENVIRONMENT: 503, _A.INTERNAL: 502, _A.USER: 400}


def facts_of(code: str, attribution: AttributionClass) -> CodeFacts:
    """Return the table row of `code`, or one made from its class for a code that only a foreign cartridge knows."""
    known = CODES.get(code)
    if known is not None:
        return known
    status = _FOREIGN_STATUS[attribution]
    kind = "invalid_request_error" if status == 400 else "server_error"
    return CodeFacts(attribution, status, kind, code.lower(), _R.LATER if attribution is _A.RESOURCE else _R.NO)


class CapdagError(Exception):
    """Root of every error this project raises on purpose. Its text says what to do next."""

    code = "HANDLER_ERROR"
    attribution = AttributionClass.INTERNAL


class ConfigError(CapdagError):
    """A setting is wrong. The text names the key, the value seen and the remedy."""

    code = "INVALID_REQUEST"
    attribution = AttributionClass.INPUT


class ProtocolError(CapdagError):
    """A rule of the wire was broken; `LocalProtocolError` by us, `RemoteProtocolError` by the peer."""

    code = "PROTOCOL_VIOLATION"


class LocalProtocolError(ProtocolError):
    """This side tried to send what the protocol forbids: a mistake in the calling code."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what the protocol forbids. It costs that peer its connection or its request."""


class LinkClosedError(CapdagError):
    """A batch was sent on a link that has ended."""

    code = "MASTER_DIED"
    attribution = AttributionClass.ENVIRONMENT


class RequestFailedError(CapdagError):
    """A request ended with ERR.

    `code`, `attribution` and `detail` are those of the ERR frame. `detail` may hold param, limit, seen,
    retryable, stderr.
    """

    def __init__(
        self, code: str, attribution: AttributionClass, message: str, detail: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.attribution = attribution
        self.message = message
        self.detail: Mapping[str, object] = detail or {}

    def __str__(self) -> str:
        return f"{self.code} ({self.attribution}): {self.message}"
