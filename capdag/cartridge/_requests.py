"""What every handler can say and see of its request, whatever kind of handler it is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from capdag.errors import AttributionClass, LocalProtocolError
from capdag.wire import LogRecord, MessageId

from ._errors import RequestCancelledError

if TYPE_CHECKING:
    from ._inbound import InputCore
    from ._job import Job


class RequestBase:
    """The part of a request that never waits."""

    def __init__(self, job: Job) -> None:
        self._base = job

    @property
    def cap(self) -> str:
        """The cap URN as the caller asked for it; the cap that serves it may be wider."""
        return self._base.asked

    @property
    def rid(self) -> MessageId:
        """The request's id: 16 bytes or an integer."""
        return self._base.flow.rid

    def progress(self, fraction: float, message: str) -> None:
        """Tell the caller how far the work is: 0.0 to 1.0 and a non-empty text. Needs no credit.

        Raises LocalProtocolError for another fraction, or an empty message.
        """
        self._base.log(LogRecord("progress", _text("message", message), _share(fraction)))

    def log(self, level: str, message: str, attribution: AttributionClass | str = AttributionClass.INTERNAL) -> None:
        """Tell the caller something: level `info`, `warn`, `error` or any other word but `progress`.

        Raises LocalProtocolError for an empty level or message, level `progress`, or an unknown class.
        """
        if _text("level", level) == "progress":
            raise LocalProtocolError("log level progress needs a fraction: use progress(fraction, message)")
        if attribution not in list(AttributionClass):
            raise LocalProtocolError(
                f"log attribution must be one of {', '.join(AttributionClass)}, not {attribution!r}"
            )
        self._base.log(LogRecord(level, _text("message", message), attribution=AttributionClass(attribution)))

    @property
    def cancelled(self) -> bool:
        """True once the caller no longer wants the answer. Cheap: look at it as often as you like."""
        return self._base.stop_reason is not None

    def check_cancelled(self) -> None:
        """Raise RequestCancelledError once the caller no longer wants the answer. As cheap as `cancelled`."""
        reason = self._base.stop_reason
        if reason is not None:
            raise RequestCancelledError(reason)

    def _main_input(self) -> InputCore:
        found = self._base.arguments.main()
        if found is None:
            raise LocalProtocolError(f"cap {self._base.cap.text!r} takes no main input: its in= is media:void")
        return found

    def _named_input(self, media_urn: str) -> InputCore:
        found = self._base.arguments.named(media_urn)
        if found is None:
            declared = [arg.media_urn for arg in self._base.cap.args]
            raise LocalProtocolError(f"cap {self._base.cap.text!r} declares no argument {media_urn!r}, only {declared}")
        return found

    def _no_main_output(self) -> LocalProtocolError:
        return LocalProtocolError(f"cap {self._base.cap.text!r} has no main output: its out= is media:void")


_ROUNDING = 1e-6
"""What a sum of parts may be beside 0.0 or 1.0."""


def _share(fraction: float) -> float:
    try:
        share = float(fraction)
    except (TypeError, ValueError):
        share = math.nan
    if not -_ROUNDING <= share <= 1.0 + _ROUNDING:
        raise LocalProtocolError(f"fraction must be a number from 0.0 to 1.0, not {fraction!r}: 0.5 is half done")
    return min(1.0, max(0.0, share))


def _text(name: str, value: str) -> str:
    if not isinstance(value, str) or not value:
        raise LocalProtocolError(f"{name} must be a non-empty text, not {value!r}")
    return value
