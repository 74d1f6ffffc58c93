"""What a handler holds in its hand."""

from __future__ import annotations

from collections.abc import Callable

from capdag.errors import AttributionClass, LocalProtocolError
from capdag.wire import LogRecord, MessageId

from ._errors import RequestCancelledError
from ._input import Input
from ._job import Job
from ._output import Output


class Request:
    """One request, given to its handler. The handler returns to end it with success or raises to end it with ERR.

    All methods may be called from any thread.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    @property
    def cap(self) -> str:
        """The cap URN as the caller asked for it; the cap that serves it may be wider."""
        return self._job.asked

    @property
    def rid(self) -> MessageId:
        """The request's id: 16 bytes or an integer."""
        return self._job.flow.rid

    def main_input(self) -> Input:
        """Return the argument that the cap's in= names. Raises LocalProtocolError for in=media:void."""
        found = self._job.arguments.main()
        if found is None:
            raise LocalProtocolError(f"cap {self._job.cap.text!r} takes no main input: its in= is media:void")
        return found

    def input(self, media_urn: str) -> Input:
        """Return the argument declared with this media URN. Raises LocalProtocolError if none is."""
        found = self._job.arguments.named(media_urn)
        if found is None:
            declared = [arg.media_urn for arg in self._job.cap.args]
            raise LocalProtocolError(f"cap {self._job.cap.text!r} declares no argument {media_urn!r}, only {declared}")
        return found

    @property
    def output(self) -> Output:
        """The output that the cap's out= names. Raises LocalProtocolError for out=media:void."""
        main = self._job.outputs.main
        if main is None:
            raise LocalProtocolError(f"cap {self._job.cap.text!r} has no main output: its out= is media:void")
        return main

    def named_output(self, media_urn: str) -> Output:
        """Return the output declared with this media URN. Raises LocalProtocolError if none is."""
        return self._job.outputs.named(media_urn)

    def progress(self, fraction: float, message: str) -> None:
        """Tell the caller how far the work is: 0.0 to 1.0 and a non-empty text. Needs no credit."""
        self._job.log(LogRecord("progress", _text("message", message), float(fraction)))

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
        self._job.log(LogRecord(level, _text("message", message), attribution=AttributionClass(attribution)))

    @property
    def cancelled(self) -> bool:
        """True once the caller no longer wants the answer. Cheap: look at it as often as you like."""
        return self._job.stop_reason is not None

    def check_cancelled(self) -> None:
        """Raise RequestCancelledError once the caller no longer wants the answer."""
        reason = self._job.stop_reason
        if reason is not None:
            raise RequestCancelledError(reason)

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Have `callback` called, in another thread, when the caller no longer wants the answer; at once and here if
        that is so already. It is never called after the request's terminal, which waits for one that runs."""
        self._job.on_cancel(callback)


def _text(name: str, value: str) -> str:
    if not isinstance(value, str) or not value:
        raise LocalProtocolError(f"{name} must be a non-empty text, not {value!r}")
    return value
