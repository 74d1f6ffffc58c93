"""Live feeds: selectors, the queue between source and handler, and whole requests in a real process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from capdag.cartridge import Cartridge, CartridgeError, FeedItem, Selector
from capdag.cartridge._feeds import QUEUED_ITEMS, FeedQueue
from capdag.cartridge._inbound import WAIT, Item
from capdag.cartridge._selector import LONGEST_SELECTOR, read_selector
from capdag.errors import ConfigError
from capdag.wire import (
    USER_CANCEL,
    Frame,
    FrameType,
    body_end_frame,
    cancel_frame,
    decode_value,
    encode_value,
)
from tests.cartridge import stub_caps as stub
from tests.cartridge.driver import TASKS_COMMAND, Driver, cartridge, chunk, end, req, start, whole_request

TICKS, QUIET, BROKEN = "media:live;ticks", "media:live;quiet;ticks", "media:broken;live"

both = pytest.mark.parametrize("cap", [stub.WATCH, stub.WATCH_PLAIN])


def bad(fault: str, detail: Mapping[str, object] | None) -> CartridgeError:
    """Make an error as an argument would."""
    return CartridgeError("INVALID_REQUEST", fault, "input", detail)


def test_selectors() -> None:
    assert read_selector(b"", bad) == read_selector(b"{}", bad) == Selector()
    whole = {"device": "cam", "params": {"fps": 5}, "stop": {"duration_ms": 9, "max_items": 2}, "on_overrun": "fail"}
    assert read_selector(json.dumps(whole).encode(), bad) == Selector("cam", {"fps": 5}, 9, 2, "fail")
    for wrong, why in (
        ("[1]", "selector .1.: it must be a JSON object"),
        ("{", "not JSON"),
        ("\udc80", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"devise": 1}', "unknown field 'devise' in its selector: known are device, params, stop, on_overrun"),
        ('{"device": 1}', "device 1: it must be a text"),
        ('{"params": []}', r"params \[\]: it must be a JSON object"),
        ('{"stop": 5}', "stop 5: it must be a JSON object"),
        ('{"stop": {"items": 5}}', "unknown field 'items' in its stop"),
        ('{"stop": {"max_items": 0}}', "stop.max_items 0: it must be an integer of at least 1"),
        ('{"stop": {"duration_ms": true}}', "stop.duration_ms True"),
        ('{"on_overrun": "wait"}', "on_overrun 'wait': it must be 'drop-oldest' or 'fail'"),
    ):
        with pytest.raises(CartridgeError, match=why):
            read_selector(wrong.encode(errors="surrogatepass"), bad)


class Bench:
    """A queue, how often it woke its reader, and what was lost."""

    def __init__(self, selector: Selector = Selector()) -> None:  # noqa: B008 - it never changes
        self.woken = self.lost = 0
        self.queue = FeedQueue(selector, self._wake, self._lose)

    def _wake(self) -> None:
        self.woken += 1

    def _lose(self) -> None:
        self.lost += 1

    def taken(self) -> list[Item]:
        """Take everything."""
        items = []
        while isinstance(item := self.queue.take(), Item):
            items.append(item)
        return items


def test_items_have_their_number_and_their_times() -> None:
    bench = Bench()
    assert bench.queue.take() is WAIT
    assert bench.queue.put("a")
    assert bench.queue.put(FeedItem("b", 5, 6))
    first, second = bench.taken()
    assert (first.value, first.meta["seq"]) == ("a", 0)
    assert 0 <= first.meta["pts_us"] < 60_000_000 < 1_600_000_000_000_000 < first.meta["capture_ts_us"]
    assert second == Item("b", {"seq": 1, "pts_us": 5, "capture_ts_us": 6})
    assert bench.woken == 2
    bench.queue.close()
    assert bench.woken == 3
    assert not bench.queue.put("c")
    assert bench.queue.take() is None


def test_the_oldest_are_dropped_and_the_next_says_so() -> None:
    bench = Bench()
    for number in range(QUEUED_ITEMS + 3):
        assert bench.queue.put(FeedItem(number, number * 10, 0))
    first, *others = bench.taken()
    assert (first.value, first.meta["seq"]) == (3, 3)
    assert first.meta["gap"] == {"dropped": 3, "duration_us": 30}
    assert len(others) == QUEUED_ITEMS - 1
    assert not any("gap" in item.meta for item in others)
    assert bench.lost == 3


def test_a_feed_that_may_lose_nothing_fails_after_what_it_has() -> None:
    bench = Bench(Selector(on_overrun="fail"))
    assert all(bench.queue.put(number) for number in range(QUEUED_ITEMS))
    assert not bench.queue.put("one too many")
    for number in range(QUEUED_ITEMS):
        item = bench.queue.take()
        assert isinstance(item, Item)
        assert item.value == number
    for _ in range(2):
        with pytest.raises(CartridgeError) as failed:
            bench.queue.take()
        assert (failed.value.code, failed.value.attribution) == ("FEED_OVERRUN", "resource")
    assert bench.lost == 1


def test_so_many_and_no_more() -> None:
    bench = Bench(Selector(max_items=2))
    assert bench.queue.put(1)
    assert not bench.queue.put(2)
    assert [item.value for item in bench.taken()] == [1, 2]
    assert bench.queue.take() is None


def test_mistakes_in_declaring_a_feed() -> None:
    c = Cartridge("c", version="1")
    for urn, why in (("frames", "not a media URN"), ("media:frames", "needs the tag `live`")):
        with pytest.raises(ConfigError, match=why):
            c.feed(urn)
    c.feed(TICKS)(lambda _: [])
    with pytest.raises(ConfigError, match="registered twice"):
        c.feed("media:ticks;live")

    async def no_generator(_: Selector) -> None: ...

    with pytest.raises(ConfigError, match="must be a generator"):
        c.feed(QUIET)(no_generator)  # type: ignore[arg-type, type-var]


def open_feed(driver: Driver, rid: int, cap: str, media: str = TICKS, **selector: Any) -> None:
    """Send a request whose argument is a selector."""
    driver.send(*whole_request(rid, cap, media, json.dumps(selector).encode()))


def items_of(driver: Driver, rid: int) -> list[tuple[Any, Mapping[str, Any]]]:
    """Return what a request was answered so far, with its meta."""
    return [(decode_value(view.fields[6]), view.meta) for view in driver.of(rid, FrameType.CHUNK)]


@both
def test_a_feed_is_read_like_a_sequence_without_end(cap: str) -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        open_feed(driver, 1, cap, params={"items": 3})
        assert driver.terminal(1).type is FrameType.END
        assert items_of(driver, 1) == [
            (number, {"seq": number, "pts_us": number * 10, "capture_ts_us": 7}) for number in range(3)
        ]
        (head,) = driver.of(1, FrameType.STREAM_START)
        (tail,) = driver.of(1, FrameType.STREAM_END)
        assert (head.fields[20], head.fields[17], 15 in tail.fields) == (True, True, False)
        assert driver.of(1, FrameType.CREDIT) == [], "a selector is not granted"

        open_feed(driver, 2, cap, stop={"max_items": 4}, params={"every": 0.005})
        assert driver.terminal(2).type is FrameType.END
        assert len(items_of(driver, 2)) == 4

        open_feed(driver, 3, cap, params={"every": 0.005}, device="clock")
        driver.find(lambda view: view.id == 3 and view.type is FrameType.CHUNK)
        driver.send(Frame(FrameType.CLOSE_STREAM, 3, stream_id="another"))
        driver.next(lambda view: view.id == 3 and view.type is FrameType.CHUNK)
        driver.send(Frame(FrameType.CLOSE_STREAM, 3))
        assert driver.terminal(3).type is FrameType.END
        driver.close()
        assert driver.stderr().count("ticks closed") == 3


@both
def test_a_handler_that_is_too_slow(cap: str) -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        # Nothing is granted: the handler stands still after one window.
        open_feed(driver, 1, cap, params={"items": 1000, "every": 0.0001}, on_overrun="fail")
        driver.heartbeat(2)
        while driver.heartbeat(2).meta["overruns_total"] == 0:
            driver.frames = [view for view in driver.frames if view.id != 2]
        driver.send(cancel_frame(1, USER_CANCEL))
        assert driver.terminal(1).meta["code"] == "CANCELLED"
        assert [value for value, _ in items_of(driver, 1)] == list(range(32))


@both
def test_a_silent_source_is_ended_all_the_same(cap: str) -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        open_feed(driver, 1, cap, QUIET, stop={"duration_ms": 100})
        assert driver.terminal(1).type is FrameType.END
        open_feed(driver, 2, cap, QUIET)
        driver.find(lambda view: view.id == 2 and view.type is FrameType.CHUNK)
        driver.send(Frame(FrameType.CLOSE_STREAM, 2))
        assert driver.terminal(2).type is FrameType.END
        open_feed(driver, 3, cap, QUIET)
        driver.find(lambda view: view.id == 3 and view.type is FrameType.CHUNK)
        driver.send(cancel_frame(3, USER_CANCEL))
        assert driver.terminal(3).meta["code"] == "CANCELLED"
        assert [value for value, _ in items_of(driver, 1)] == ["only"]
        driver.close()
        assert driver.stderr().count("quiet closed") == 3


def test_feeds_that_cannot_be_opened() -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        wrong = [
            ("media:live;smell", {}, f"feed that nobody registered; registered: {TICKS}"),
            (TICKS, {"bogus": 1}, "unknown field 'bogus'"),
            (TICKS, {"device": "sundial"}, "device 'sundial' is not there, only clock"),
            (TICKS, {"params": {"x": "y" * LONGEST_SELECTOR}}, "selector of over"),
        ]
        for rid, (media, selector, why) in enumerate(wrong):
            open_feed(driver, rid, stub.WATCH, media, **selector)
            meta = driver.terminal(rid).meta
            assert (meta["code"], meta["attribution_class"]) == ("INVALID_REQUEST", "input")
            assert why in meta["message"]
        driver.send(
            req(50, stub.WATCH), start(50, TICKS), chunk(50, 0, encode_value(7)), end(50, 1), body_end_frame(50)
        )
        assert "neither bytes nor text" in driver.terminal(50).meta["message"]
        driver.send(req(51, stub.WATCH), start(51, TICKS), start(51, TICKS, stream="again"))
        assert "came twice" in driver.terminal(51).meta["message"]
        open_feed(driver, 52, stub.WATCH, BROKEN)
        assert driver.terminal(52).meta["message"] == "OSError: the camera was pulled out"
        assert [value for value, _ in items_of(driver, 52)] == [1]
        open_feed(driver, 53, stub.WHOLE)
        assert "has no end and cannot be read whole" in driver.terminal(53).meta["message"]
