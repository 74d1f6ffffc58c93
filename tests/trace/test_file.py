"""The file of a trace: written a line at once, read whole or refused with the line that is wrong."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from capdag.trace import Closed, Exited, FrameSeen, Record, TraceError, TraceWriter, Unreadable, read_trace

RECORDS: list[Record] = [
    FrameSeen(0.001, "cartridge", bytes(range(256))),
    Unreadable(0.5, "host", b"Loading model...\n", "frame length 1282368879 is not within 1..16777216"),
    Closed(0.6, "host"),
    Exited(0.7, code=3),
    Exited(0.8, signal=9),
]

HEAD = b'{"kind":"head","version":1,"command":[],"started":"","payloads":false}\n'


def written(tmp_path: Path) -> Path:
    path = tmp_path / "run.trace"
    writer = TraceWriter(path, ["python3", "mine.py"], payloads=True)
    writer.write(*RECORDS)
    writer.close()
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path))
    assert trace.records == RECORDS
    assert trace.head.command == ["python3", "mine.py"]
    assert trace.head.payloads is True
    assert trace.head.started.endswith("+00:00")


def test_the_file_is_its_owners_alone_and_never_overwritten(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    for name in ("run-2.trace", "run-3.trace"):
        writer = TraceWriter(path, [], payloads=False)
        writer.close()
        assert writer.path == tmp_path / name
    assert path.read_bytes() == before
    with pytest.raises(TraceError, match=r"cannot write the trace .*: No such file or directory"):
        TraceWriter(tmp_path / "none" / "run.trace", [], payloads=False)
    with pytest.raises(TraceError, match=r"cannot write the trace .*: embedded null byte"):
        TraceWriter(tmp_path / "a\0b", [], payloads=False)


def test_a_line_that_was_cut_short_is_left_out_and_told(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert read_trace(path).is_whole
    path.write_bytes(path.read_bytes()[:-4])
    trace = read_trace(path)
    assert (trace.records, trace.torn) == (RECORDS[:-1], True)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    assert (read_trace(path).torn, read_trace(path).is_whole) == (False, False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no trace, or its recorder was killed at once: it holds no whole line"),
        (b"hello\n", "is no trace: its first line is not a head"),
        (b'{"kind":"closed","t":0,"to":"host"}\n', "is no trace: its first line is not a head"),
        (
            b'{"kind":"head","version":2,"command":[],"started":"","payloads":false}\n',
            "is of trace version 2 and this program reads 1: update it",
        ),
        (
            HEAD + b'{"kind":"closed","t":1,"to":"switch"}\n',
            r"line 2: Invalid enum value 'switch' - at `\$\.to`",
        ),
        (
            HEAD + b'{"kind":"frame","t":1,"to":"host","body":"%%%"}\n',
            "line 2: Invalid base64",
        ),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.trace"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


def test_a_line_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "endless.trace"
    path.touch()
    os.truncate(path, 2**40)  # sparse
    with pytest.raises(TraceError, match="it holds no whole line"):
        read_trace(path)


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read the trace .*none\.trace: No such file or directory"):
        read_trace(tmp_path / "none.trace")
