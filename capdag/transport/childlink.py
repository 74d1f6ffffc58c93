"""The link to a child over its pipes, whatever these are on this system."""

from __future__ import annotations

import sys
from collections.abc import Callable

from .process import ChildProcess

if sys.platform == "win32":
    import trio

    from .streamlink import StreamLink

    ChildLink = StreamLink
else:
    from .fdlink import FdLink

    ChildLink = FdLink


def child_link(name: str, child: ChildProcess, *, close_stdin: Callable[[], None]) -> ChildLink:
    """Return a link over a child's stdin and stdout. `close_stdin` is called once, at its end.

    stdout stays open after that: the process must be able to finish what it writes.
    """
    if sys.platform == "win32":
        return StreamLink(name, trio.StapledStream(child.stdin, child.stdout), close=close_stdin)
    else:  # noqa: RET505 - type checkers know which branch is for which system
        return FdLink(name, child.stdout_fd, child.stdin_fd, close_read=lambda: None, close_write=close_stdin)
