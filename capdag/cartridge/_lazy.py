"""trio, imported when something of it is first used: an author may name `AsyncRequest` at no cost before HELLO."""

from __future__ import annotations

from typing import Any


class _Lazy:
    def __getattr__(self, name: str) -> Any:
        import trio

        found = getattr(trio, name)
        self.__dict__[name] = found  # the next use finds it without coming here
        return found


trio = _Lazy()
