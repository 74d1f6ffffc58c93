"""Every error of the gateway, in the one form that OpenAI clients read (client contract, Errors and retries)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capdag.errors import CapdagError, RequestFailedError, facts_of
from capdag.printable import paragraph, printable

from .sse import dump

RETRY_AFTER = 2
"""Seconds that a client is told to wait before it tries a busy or starting server again."""

_LONGEST_WORD = 64
"""Characters of a code, or of the name of a field, that a client is told."""

_GONE_STATUS = 503
"""For codes whose caller is gone by the table, should a caller be there after all."""


class ApiError(CapdagError):
    """An error for the client of an HTTP request.

    `http_code` is the stable word in the body; `param` the field of the request at fault. `retry` says whether the
    same request may be sent again; None leaves it to the client's own rule for the status.
    """

    def __init__(
        self,
        status: int,
        http_code: str,
        message: str,
        *,
        kind: str | None = None,
        param: str | None = None,
        retry: bool | None = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.http_code = http_code
        self.message = message
        self.kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
        self.param = param
        self.retry = retry
        self._headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the JSON object of the error, as a response's body or as an event inside a stream.

        What a cartridge or the client has written is bounded, and acts on no terminal that a client prints it on.
        """
        shown = {
            "message": paragraph(self.message),
            "type": self.kind,
            "param": None if self.param is None else printable(self.param, _LONGEST_WORD),
            "code": printable(self.http_code, _LONGEST_WORD),
        }
        return {"error": shown}

    def render(self) -> tuple[bytes, dict[str, str]]:
        """Return the body and the headers of the response that tells this error."""
        headers = {"content-type": "application/json", **self._headers}
        if self.retry is not None:
            headers["x-should-retry"] = "true" if self.retry else "false"
        if self.status in (503, 504) and self.retry:
            headers["retry-after"] = str(RETRY_AFTER)
        return dump(self.body()), headers


def bad_request(message: str, param: str | None = None, http_code: str = "invalid_request") -> ApiError:
    """Return the 400 for a field that is wrong; `message` names it, the value seen and the remedy."""
    return ApiError(400, http_code, message, param=param)


def api_error(failure: RequestFailedError, *, started: bool) -> ApiError:
    """Return how the failure of a request is told to its client.

    `started`: the answer had begun, so that a second try would be paid twice: never asked for.
    """
    facts = facts_of(failure.code, failure.attribution)
    wanted = failure.detail.get("retryable")
    retry = (wanted if isinstance(wanted, bool) else facts.retryable) and not started
    param = failure.detail.get("param")
    return ApiError(
        facts.status or _GONE_STATUS,
        facts.http_code,
        failure.message,
        kind=facts.type,
        param=param if isinstance(param, str) else None,
        retry=retry,
    )
