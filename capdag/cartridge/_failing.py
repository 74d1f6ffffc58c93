"""What a handler's exception becomes: the one ERR of its request, whatever the exception is or holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from capdag.errors import AttributionClass, LinkClosedError, RequestFailedError
from capdag.wire import Failure, encode_value

from ._errors import RequestCancelledError, show_traceback

LONGEST_MESSAGE = 4096
"""Bytes of a failure's text that go into its ERR; all of an exception's own is on stderr."""

_LONGEST_CODE, _LONGEST_VALUE, _MOST_VALUES = 64, 200, 8
"""Bytes, and values of a detail, that the smallest frame holds beside the longest text."""

_CODED = (RequestFailedError, RequestCancelledError, LinkClosedError)


def failure_of_error(error: BaseException) -> Failure:
    """Return what ends a request whose handler raised `error`, in its `except` block: a failure that has a code keeps
    it, also in a group of such; anything else is HANDLER_ERROR, and its traceback is on stderr. Never raises."""
    try:
        return _failure_of_error(error)
    except BaseException:  # noqa: BLE001 - the author's class, which may break what it inherits: the request still ends
        return Failure("HANDLER_ERROR", AttributionClass.INTERNAL, type(error).__name__)


def _failure_of_error(error: BaseException) -> Failure:
    leaves = list(_leaves(error))
    if all(isinstance(leaf, _CODED) for leaf in leaves):
        error = next((leaf for leaf in leaves if isinstance(leaf, RequestFailedError)), leaves[0])
    if isinstance(error, RequestFailedError):
        return Failure(error.code, error.attribution, _plain_text(error.message, LONGEST_MESSAGE), error.detail)
    if isinstance(error, (RequestCancelledError, LinkClosedError)):
        return Failure(error.code, error.attribution, str(error))
    show_traceback()
    text = "; ".join(map(_named, leaves))
    if len(leaves) > 1:
        text = f"{len(leaves)} failures: {text}"
    return Failure("HANDLER_ERROR", AttributionClass.INTERNAL, _cut(text, LONGEST_MESSAGE))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _named(error: BaseException) -> str:
    text, name = text_of(error), type(error).__name__
    return f"{name}: {text}" if text else name


def text_of(error: BaseException) -> str:
    """Return the text of an exception, which its author may have written: if it cannot be made, it says so."""
    try:
        return str(error)
    except BaseException as fault:  # noqa: BLE001 - see above
        return f"(no text: its str() raised {type(fault).__name__})"


def ever_plainer(failure: Failure) -> Iterator[Failure]:
    """Yield a failure as it is, then with what no frame can hold escaped, shown as text or cut, then without detail:
    the last surely fits any frame."""
    yield failure
    code = failure.code if isinstance(failure.code, str) and failure.code else "HANDLER_ERROR"
    plain = Failure(
        _cut(code, _LONGEST_CODE),
        failure.attribution if isinstance(failure.attribution, AttributionClass) else AttributionClass.INTERNAL,
        _plain_text(failure.message, LONGEST_MESSAGE),
    )
    yield plain._replace(detail=_plain_detail(failure.detail))
    yield plain


def _plain_detail(detail: object) -> Mapping[str, Any] | None:
    try:
        items = list(islice(dict(detail).items(), _MOST_VALUES))  # type: ignore[call-overload]
    except Exception:  # noqa: BLE001 - the author's mapping, or none at all
        return None
    return {_plain_text(key, _LONGEST_CODE): _plain_value(value) for key, value in items}


def _plain_value(value: object) -> Any:
    try:
        if len(encode_value(value)) <= _LONGEST_VALUE:
            return value
    except Exception:  # noqa: BLE001, S110 - whatever is the matter with it, it is shown as text
        pass
    return _plain_text(value, _LONGEST_VALUE)


def _plain_text(value: object, most: int) -> str:
    return _cut(value if isinstance(value, str) else _shown(value), most)


def _shown(value: object) -> str:
    try:
        return repr(value)
    except BaseException:  # noqa: BLE001 - see above
        return f"<{type(value).__name__}>"


def _cut(text: str, most: int) -> str:
    """Return a text as it surely can be sent, in at most `most` bytes."""
    data = str.encode(text, "utf-8", "backslashreplace")
    if len(data) <= most:
        return data.decode()
    return data[: most - 3].decode("utf-8", "ignore") + "…"
