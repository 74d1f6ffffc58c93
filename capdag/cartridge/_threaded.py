"""The loop of the synchronous shell where pipes cannot be polled (Windows): a thread reads, workers write.

The main thread waits for news alone: that something was read or written, or that the end has come.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from queue import Empty, SimpleQueue
from threading import Semaphore, Thread

from ._runtime import READ_SIZE, Runtime


class _News(Enum):
    WOKEN = auto()  # as the wake-up pipe of `Runtime` tells it
    READ = auto()
    WRITTEN = auto()
    RELIEVED = auto()


class ThreadedRuntime(Runtime):
    """A `Runtime` that polls no descriptor."""

    polls = False

    def _open_news(self) -> None:
        self._news: SimpleQueue[_News] = SimpleQueue()
        self._wanted = Semaphore(0)
        self._reader: Thread | None = None
        self._is_reading = self._is_writing = False
        self._data = b""

    def _wake(self) -> None:
        self._news.put(_News.WOKEN)

    def fetch(self) -> None:
        """Read once, waiting, what the next `read_once` takes."""
        try:
            self._data = os.read(self.read_fd, READ_SIZE)
        except OSError:  # Windows says so of a pipe whose other end was killed
            self._data = b""

    def _read(self) -> bytes:
        return self._data

    def _serve_until(self, done: Callable[[], bool]) -> int | None:
        """Take frames as `Runtime` does."""
        if self._reader is None:
            self._reader = Thread(target=self._read_when_wanted, daemon=True)
            self._reader.start()
            self.writer.on_relieved = lambda: self._news.put(_News.RELIEVED)
        while not done():
            self._want_more()
            match self._news.get():
                case _News.WOKEN:
                    return self._end_code
                case _News.READ:
                    self._is_reading = False
                    if (code := self.read_once()) is not None:
                        return code
                case _News.WRITTEN:
                    self._is_writing = False
            self._flush()
        return None

    def _want_more(self) -> None:
        """Have more read, unless it was asked for already or the host sends and never reads."""
        if self.writer.overfull:
            self.writer.main_waits = True  # and look again: all may have been written meanwhile
        if not self._is_reading and not self.writer.overfull:
            self._is_reading = True
            self._wanted.release()

    def _read_when_wanted(self) -> None:
        """In a thread: at the end of stdin nothing more is wanted."""
        while True:
            self._wanted.acquire()
            self.fetch()
            self._news.put(_News.READ)

    def _flush(self) -> None:
        self.writer.flush()
        if self.writer.wants_room and not self._is_writing:
            self._is_writing = True
            self.workers.run(self._write)

    def _write(self) -> None:
        self.writer.send_posted()
        self._news.put(_News.WRITTEN)

    def _await_news(self, seconds: float) -> None:
        with suppress(Empty):
            if self._news.get(timeout=seconds) is _News.WRITTEN:
                self._is_writing = False
