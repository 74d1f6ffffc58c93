"""Output streams without a process: credit, cancel and what comes too late."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from capdag.cartridge import Cartridge, Request, RequestCancelledError
from capdag.cartridge._job import ThreadJob
from capdag.cartridge._served import serve
from capdag.cartridge._writer import Flow, FrameWriter
from capdag.errors import AttributionClass, LocalProtocolError
from capdag.urn import UrnError
from capdag.wire import DEFAULT_LIMITS, Failure, FrameSplitter, FrameType, FrameView, inspect

OVER = RequestCancelledError(Failure("CANCELLED", AttributionClass.USER, "nobody wants it"))
MAIN, NOTES = "media:text", "media:notes"


def handler(request: Request) -> None:
    """Do nothing."""


class Bench:
    """Two outputs, main and notes, over a pipe."""

    def __init__(self) -> None:
        cartridge = Cartridge("test", version="1")
        outputs = [
            {"media_urn": MAIN, "name": "main", "output_description": "text", "is_sequence": True},
            {"media_urn": NOTES, "name": "notes", "output_description": "notes", "optional": True},
        ]
        cartridge.add_cap("cap:in=media:void;out=media:text", handler, title="t", aliases=["t"], outputs=outputs)
        cap = serve(cartridge.manifest()["cap_groups"][0]["caps"][1], handler)
        self.read_fd, self.write_fd = os.pipe()
        writer = FrameWriter(self.write_fd, DEFAULT_LIMITS.max_frame, lambda: None)
        limits = DEFAULT_LIMITS._replace(initial_credit=2)
        self.outputs = ThreadJob(cap, cap.text, Flow(1, 5), limits, writer, lambda *_: None).outputs  # type: ignore[arg-type, return-value]
        assert self.outputs.main is not None
        self.main = self.outputs.main
        self.notes = self.outputs.named(NOTES)
        self._splitter = FrameSplitter()

    def finish(self) -> None:
        """End every stream, as the end of a handler does."""
        for facts, output in self.outputs.declared():
            output.finish(is_required=facts.is_required)

    def frames(self) -> list[FrameView]:
        """Return what has been written and not read yet."""
        return [inspect(body) for body in self._splitter.feed(os.read(self.read_fd, 65_536))]

    def kinds(self) -> list[str]:
        """Return the types of it."""
        return [view.type.name for view in self.frames()]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    os.close(bench.read_fd)
    os.close(bench.write_fd)


def in_thread(work: Any) -> tuple[threading.Thread, list[BaseException | None]]:
    """Run something that may block; how it ended is in the list."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - what it was is what the test asks
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, ended


def test_a_grant_lets_one_go_on(bench: Bench) -> None:
    bench.main.item(1)
    bench.main.item(2)
    thread, ended = in_thread(lambda: bench.main.item(3))
    thread.join(0.05)
    assert ended == []
    stream_id = bench.frames()[0].stream_id
    assert bench.outputs.grant(stream_id, 1)
    thread.join(5)
    assert ended == [None]
    assert [view.fields[14] for view in bench.frames()] == [2]


def test_a_grant_that_names_no_stream_counts_if_one_is_open(bench: Bench) -> None:
    assert not bench.outputs.grant(None, 1), "none is open"
    bench.main.open()
    assert bench.outputs.grant(None, 1)
    bench.notes.open()
    assert not bench.outputs.grant(None, 1), "two are open"
    assert not bench.outputs.grant("resp-00000000-7", 1), "no such stream"


def test_closing_fails_who_waits_and_who_comes(bench: Bench) -> None:
    bench.main.item(1)
    bench.main.item(2)
    thread, ended = in_thread(lambda: bench.main.item(3))
    thread.join(0.05)
    bench.outputs.close(OVER)
    thread.join(5)
    assert isinstance(ended[0], RequestCancelledError)
    for late in (lambda: bench.main.item(4), bench.main.open, lambda: bench.notes.write(b"x"), bench.notes.flush):
        with pytest.raises(RequestCancelledError, match="nobody wants it"):
            late()
    assert bench.kinds() == ["STREAM_START", "CHUNK", "CHUNK"]


def test_nothing_follows_the_end_of_a_stream(bench: Bench) -> None:
    bench.main.item(1)
    bench.finish()
    with pytest.raises(LocalProtocolError, match="has ended"):
        bench.main.item(2)
    assert bench.kinds() == ["STREAM_START", "CHUNK", "STREAM_END"]
    assert not bench.outputs.grant(None, 1)


def test_opening_twice(bench: Bench) -> None:
    bench.main.open({"source": "test"})
    bench.main.open()
    with pytest.raises(LocalProtocolError, match="is open already"):
        bench.main.open({"source": "again"})
    (head,) = bench.frames()
    assert (head.type, head.meta) == (FrameType.STREAM_START, {"source": "test"})


def test_values_and_items_do_not_mix(bench: Bench) -> None:
    with pytest.raises(LocalProtocolError, match="declares a sequence: use item"):
        bench.main.write("x")
    with pytest.raises(LocalProtocolError, match="declares scalar: use write"):
        bench.notes.item("x")
    with pytest.raises(LocalProtocolError, match="cannot be encoded"):
        bench.main.item(object())


def test_names_of_outputs(bench: Bench) -> None:
    assert (bench.main.media_urn, bench.main.is_sequence) == (MAIN, True)
    with pytest.raises(LocalProtocolError, match="declares no output 'media:other', only"):
        bench.outputs.named("media:other")
    with pytest.raises(UrnError):
        bench.outputs.named("other")


@pytest.mark.parametrize(
    ("urn", "media"),
    [
        ("cap:a;in=media:text;out=media:html", "media:html"),
        ('cap:a;effect=none;in="media:text;bold";out=media:text', "media:bold;text"),
        ('cap:a;effect=patch;in=media:text;out="media:text;bold"', "media:bold;text"),
    ],
)
def test_the_media_of_the_main_stream_follows_from_the_effect(urn: str, media: str) -> None:
    cartridge = Cartridge("test", version="1")
    cartridge.add_cap(urn, handler, title="t", aliases=["t"])
    (output,) = serve(cartridge.manifest()["cap_groups"][0]["caps"][1], handler).outputs
    assert output.stream_media == media
