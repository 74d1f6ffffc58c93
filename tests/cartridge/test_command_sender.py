"""Arguments of a command on their way to the handler: in pieces as they come, and no more than credit allows."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from capdag.cartridge._command_arguments import GivenArgument
from capdag.cartridge._command_sender import ArgumentSender
from capdag.errors import ConfigError
from capdag.wire import Frame, FrameType, ItemReader, Limits, decode_value

LIMITS = Limits(max_chunk=10, initial_credit=2)


class Pipe:
    """A pipe to be read by a sender, which closes its end once it has read everything."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        self.is_open = True

    def write(self, data: bytes) -> None:
        os.write(self._write_fd, data)

    def end(self) -> None:
        os.close(self._write_fd)
        self.is_open = False


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    if made.is_open:
        made.end()
        os.close(made.fd)


def sender(values: list[bytes | str], *, fd: int | None = None, is_sequence: bool = False) -> ArgumentSender:
    return ArgumentSender(1, "arg-0", GivenArgument("media:x", is_sequence, values, fd), LIMITS)


def payloads(frames: list[Frame]) -> list[bytes]:
    return [frame.payload or b"" for frame in frames if frame.frame_type is FrameType.CHUNK]


def test_a_long_value_goes_piece_by_piece_as_credit_comes() -> None:
    out = sender([b"a" * 25])
    first = list(out.frames())
    assert [frame.frame_type for frame in first] == [FrameType.CHUNK, FrameType.CHUNK]
    assert list(out.frames()) == []
    assert not out.ended
    out.grant(1)
    last, end = out.frames()
    assert b"".join(map(decode_value, payloads([*first, last]))) == b"a" * 25
    assert (last.chunk_index, end.frame_type, end.chunk_count, out.ended) == (2, FrameType.STREAM_END, 3, True)
    assert list(out.frames()) == []


def test_nothing_is_read_that_could_not_be_sent(pipe: Pipe) -> None:
    out = sender([], fd=pipe.fd)
    pipe.write(b"b" * 35)
    assert out.wanted_fd == pipe.fd
    out.read()
    assert out.wanted_fd is None
    assert len(payloads(list(out.frames()))) == 2
    out.grant(2)
    assert len(payloads(list(out.frames()))) == 2
    assert out.wanted_fd is None
    out.grant(1)
    assert out.wanted_fd == pipe.fd
    pipe.end()
    out.read()
    (end,) = out.frames()
    assert (end.frame_type, end.chunk_count, out.wanted_fd) == (FrameType.STREAM_END, 4, None)


def test_items_are_lines_wherever_they_are_cut(pipe: Pipe) -> None:
    out = sender([], fd=pipe.fd, is_sequence=True)
    sent: list[bytes] = []
    for part in (b'{"a"', b": 1}\n\n", b'"' + b"c" * 30 + b'"\n[2', b"]"):
        pipe.write(part)
        out.read()
        for _ in range(4):
            sent += payloads(list(out.frames()))
            out.grant(2)
    pipe.end()
    out.read()
    *chunks, end = out.frames()
    sent += payloads(chunks)
    reader = ItemReader()
    assert [item for payload in sent for item in reader.feed(payload)] == [{"a": 1}, "c" * 30, [2]]
    assert max(map(len, sent)) == 10
    assert end.chunk_count == len(sent)


def test_a_line_that_is_no_item_is_named(pipe: Pipe) -> None:
    out = sender([], fd=pipe.fd, is_sequence=True)
    pipe.write(b"1\n2\nthree\n")
    with pytest.raises(ConfigError, match=r"line 3 of media:x is not JSON: .* not 'three'"):
        out.read()


def test_words_are_items() -> None:
    out = sender(["a", b"\x00"], is_sequence=True)
    assert list(map(decode_value, payloads(list(out.frames())))) == ["a", b"\x00"]
