"""The queue between a source that does not wait and a handler that may be slow (protocol-spec/wire.md, Live feeds)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock, Timer
from typing import Any

from capdag.errors import AttributionClass
from capdag.urn import MediaUrn

from ._errors import CartridgeError, show_traceback
from ._inbound import WAIT, Item, Taken
from ._selector import FAIL, Bad, FeedItem, LiveFeed, Selector

QUEUED_ITEMS = 64
"""Items that wait for the handler before the oldest is dropped or the feed fails."""


class FeedQueue:
    """The items of one open feed. `put` is for the source, `take` for the handler, `close` for anybody."""

    def __init__(self, selector: Selector, wake: Callable[[], None], count_overrun: Callable[[], None]) -> None:
        self.selector = selector
        self._wake = wake
        self._count_overrun = count_overrun
        self._lock = Lock()
        self._items: deque[Item] = deque()
        self._opened = time.monotonic_ns()
        self._seq = 0
        self._closed = False
        self._error: BaseException | None = None
        self._on_close: Callable[[], object] = lambda: None

    def on_close(self, callback: Callable[[], object]) -> None:
        """Have `callback` called, from any thread, when the feed is closed from outside; now, if it is."""
        with self._lock:
            closed = self._closed
            self._on_close = callback
        if closed:
            callback()

    def put(self, given: Any) -> bool:
        """Take an item from the source. False if no more are wanted."""
        item = given if isinstance(given, FeedItem) else FeedItem(given)
        with self._lock:
            if self._closed:
                return False
            self._items.append(self._described(item))
            if len(self._items) > QUEUED_ITEMS:
                self._overrun()
            if self._seq == self.selector.max_items:
                self._closed = True
            wanted = not self._closed
        self._wake()
        return wanted

    def take(self) -> Taken:
        """Return the next item, WAIT, or None at the end. Raises what the feed failed with, after its items."""
        with self._lock:
            if self._items:
                return self._items.popleft()
            if self._error is not None:
                raise self._error.with_traceback(None)
            return None if self._closed else WAIT

    def close(self, error: BaseException | None = None) -> None:
        """End the feed; what is queued can still be taken."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._error = error
            callback = self._on_close
        callback()
        self._wake()

    def _described(self, item: FeedItem) -> Item:
        now = (time.monotonic_ns() - self._opened) // 1000
        meta = {
            "seq": self._seq,
            "pts_us": now if item.pts_us is None else item.pts_us,
            "capture_ts_us": time.time_ns() // 1000 if item.capture_ts_us is None else item.capture_ts_us,
        }
        self._seq += 1
        return Item(item.value, meta)

    def _overrun(self) -> None:
        self._count_overrun()
        if self.selector.on_overrun == FAIL:
            self._closed = True
            message = (
                f"the handler is slower than the feed: {QUEUED_ITEMS} items wait; "
                f"ask for fewer, or for on_overrun drop-oldest"
            )
            self._error = CartridgeError(
                "FEED_OVERRUN", message, AttributionClass.RESOURCE, {"limit": QUEUED_ITEMS, "retryable": True}
            )
            self._items.pop()
            return
        lost = self._items.popleft()
        behind = self._items[0]
        gap = lost.meta.get("gap", {"dropped": 0, "duration_us": 0})
        passed = behind.meta["pts_us"] - lost.meta["pts_us"]
        more = {"dropped": gap["dropped"] + 1, "duration_us": gap["duration_us"] + passed}
        self._items[0] = Item(behind.value, {**behind.meta, "gap": more})


class Feeds:
    """The registered feeds of one cartridge. `overruns` counts the items that handlers were too slow for."""

    def __init__(self, feeds: Sequence[LiveFeed]) -> None:
        self.overruns = 0
        self._feeds = feeds
        self._lock = Lock()

    def open(
        self,
        media: MediaUrn,
        selector: Selector,
        bad: Bad,
        wake: Callable[[], None],
        start: Callable[[LiveFeed, FeedQueue], None],
    ) -> FeedQueue:
        """Open the feed that fits a media URN best: `start` starts its source. Raises what `bad` makes if none fits."""
        fitting = [feed for feed in self._feeds if media.satisfies(feed.media)]
        if not fitting:
            known = ", ".join(str(feed.media) for feed in self._feeds) or "none"
            raise bad(f"names a feed that nobody registered; registered: {known}", None)
        queue = FeedQueue(selector, wake, self._count_overrun)
        start(max(fitting, key=lambda feed: feed.media.specificity()), queue)
        return queue

    def _count_overrun(self) -> None:
        with self._lock:
            self.overruns += 1


def pump(feed: LiveFeed, queue: FeedQueue) -> None:
    """Run a plain source, in a worker, until it ends or no more is wanted: it hears of that with its next item, the
    handler at once."""
    timer = None
    if queue.selector.duration_ms is not None:
        timer = Timer(queue.selector.duration_ms / 1000, queue.close)
        timer.daemon = True
        timer.start()
    try:
        source = feed.opener(queue.selector)
        assert isinstance(source, Iterable)
        items = iter(source)
        try:
            for item in items:
                if not queue.put(item):
                    break
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()
        queue.close()
    except BaseException as error:  # noqa: BLE001 - the author's source: whoever reads it is told
        if not isinstance(error, CartridgeError):
            show_traceback()
        queue.close(error)
    finally:
        if timer is not None:
            timer.cancel()
