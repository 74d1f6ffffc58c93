"""The exceptions that a handler meets or raises, and where others are shown."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from capdag.errors import AttributionClass, CapdagError, LocalProtocolError, RemoteProtocolError, RequestFailedError
from capdag.wire import Failure

LONGEST_TEXT = 200
"""Characters of what the host sent that an error repeats: enough to know it by, and a frame always holds it."""


class CartridgeError(RequestFailedError):
    """Raise it in a handler to end the request with ERR: code, class, message and detail reach the caller as given.

    `attribution` says who has to act: `input`, `resource`, `environment`, `internal` or `user`. `detail` may hold
    param, limit, seen and retryable. A message is cut at 4,096 bytes; what no frame can hold is shown as text. Raises
    LocalProtocolError for another class, or an empty code or message.
    """

    def __init__(
        self,
        code: str,
        message: str,
        attribution: AttributionClass | str = AttributionClass.INTERNAL,
        detail: Mapping[str, object] | None = None,
    ) -> None:
        if attribution not in list(AttributionClass):
            raise LocalProtocolError(
                f"CartridgeError attribution must be one of {', '.join(AttributionClass)}, not {attribution!r}"
            )
        for name, value in (("code", code), ("message", message)):
            if not isinstance(value, str) or not value:
                raise LocalProtocolError(f"CartridgeError {name} must be a non-empty text, not {value!r}")
        super().__init__(code, AttributionClass(attribution), message, detail)


class RequestCancelledError(CapdagError):
    """The request is over for its caller: cancelled, broken by its sender, or ended. Let it pass: the runtime sends
    the one ERR that is due, with the reason's own code and class."""

    def __init__(self, reason: Failure) -> None:
        super().__init__(reason.message)
        self.code = reason.code
        self.attribution = reason.attribution


class RelayFrameError(RemoteProtocolError):
    """A frame came that belongs between hosts and engines: whoever is on the other end takes us for a relay."""


def show_traceback() -> None:
    """Write the exception being handled to stderr."""
    kind, error, trace = sys.exc_info()
    assert kind is not None
    assert error is not None
    sys.__excepthook__(kind, error, trace)
