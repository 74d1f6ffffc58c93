"""Whether a pipe has room: asked by poll(), which Windows does not have for pipes."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable

if sys.platform == "win32":
    SURE = 4096
    LARGE = 0

    def room_poll(_: int) -> Callable[[int], object]:
        """Return what never finds room: the main thread leaves all writing to workers, which may wait."""
        return lambda _: ()

    def wait_for_room(_: int) -> None:
        """Do nothing: a write to a pipe waits by itself."""
else:
    # poll() promises room for this much on a pipe: a write of no more cannot block, whatever mode the descriptor is in.
    # The mode is not ours to set: the open file may be shared with another process.
    SURE = select.PIPE_BUF

    LARGE = 16_384
    """Bytes posted from which a worker writes them even for tasks: it need not ask for room every 4 KiB."""

    def room_poll(fd: int) -> Callable[[int], object]:
        """Return what is called with milliseconds to wait, and returns something true if `SURE` bytes have room."""
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        return poll.poll

    def wait_for_room(fd: int) -> None:
        """Wait until `SURE` bytes have room."""
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        poll.poll()
