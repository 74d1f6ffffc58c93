"""One argument of a call, as its handler gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ._outbound import OutCore

_WHOLE = (bytes, bytearray, memoryview, str, list, tuple, dict)
"""Values that are iterable and go out as one value all the same."""


class Argument(NamedTuple):
    """One argument of a call.

    `data` is a value as `Output.write` takes it, or an iterator of such (async in an async handler; an `Input` will do)
    that is sent piece by piece under credit. With `is_sequence` it is an iterable of items. `meta` describes the
    whole stream. `unbounded` says that it has no end of its own.
    """

    media_urn: str
    data: Any
    is_sequence: bool = False
    meta: Mapping[str, Any] | None = None
    unbounded: bool = False

    @property
    def is_whole(self) -> bool:
        """True if the data are one value and not an iterator of values."""
        data = self.data
        return not self.is_sequence and (
            isinstance(data, _WHOLE) or not (hasattr(data, "__iter__") or hasattr(data, "__aiter__"))
        )

    def fits(self, out: OutCore, window: int) -> bool:
        """True if the data surely go out within one window."""
        if not self.is_whole or not isinstance(self.data, _WHOLE):
            return self.is_whole
        if isinstance(self.data, (list, tuple, dict)):
            return len(self.data) <= window
        return 4 * len(self.data) <= window * out._max_piece  # 4: bytes of a character, at most
