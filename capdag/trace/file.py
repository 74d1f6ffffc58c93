"""The trace file: one JSON object a line (protocol-spec/traces.md, File)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from capdag.errors import AttributionClass, CapdagError
from capdag.wire.limits import HARD_MAX_FRAME

VERSION = 1

SETTINGS_VARIABLE = "CAPDAG_CONFIG"
"""Where a host puts a cartridge's settings, as JSON."""

End = Literal["cartridge", "host"]
"""Who a frame goes to."""

_LONGEST_LINE = HARD_MAX_FRAME * 4 // 3 + 65_536
"""Bytes of a line: those of a frame as base64, and what stands around it."""

_MOST_STARTS = 10_000

_Seconds = Annotated[float, Meta(ge=0)]


class TraceError(CapdagError):
    """A trace cannot be read or used. The text names the file, the line and the remedy."""

    code = "INVALID_REQUEST"
    attribution = AttributionClass.INPUT


class Head(Struct, tag="head", tag_field="kind", frozen=True):
    """The first line: what was recorded. `started` is UTC, ISO 8601; `payloads` says whether contents were kept;
    `settings` are the cartridge's, if it was given any."""

    version: int
    command: list[str]
    started: str
    payloads: bool
    settings: dict[str, Any] | None = None


class FrameSeen(Struct, tag="frame", tag_field="kind", frozen=True):
    """One frame: `t` seconds after the start, its receiver, its body (base64 in the file)."""

    t: _Seconds
    to: End
    body: bytes


class Unreadable(Struct, tag="unreadable", tag_field="kind", frozen=True):
    """Bytes that are no frame, their beginning kept, and why. Nothing after them is read in this direction."""

    t: _Seconds
    to: End
    data: bytes
    error: str


class Closed(Struct, tag="closed", tag_field="kind", frozen=True):
    """The stream to `to` ended."""

    t: _Seconds
    to: End


class Exited(Struct, tag="exited", tag_field="kind", frozen=True):
    """The cartridge's process ended, by exit code or by signal."""

    t: _Seconds
    code: int | None = None
    signal: int | None = None


Record = FrameSeen | Unreadable | Closed | Exited
"""What a line after the first may be."""


class Trace(NamedTuple):
    """A trace as read. `torn`: its last line was cut short, and is left out."""

    head: Head
    records: Sequence[Record]
    torn: bool = False

    @property
    def is_whole(self) -> bool:
        """True if it was recorded to the end of the process."""
        return any(isinstance(record, Exited) for record in self.records)


_encode = msgspec.json.Encoder().encode
_decode_head = msgspec.json.Decoder(Head).decode
_decode_record = msgspec.json.Decoder(Record).decode


class TraceWriter:
    """Writes a trace, a line at once: what was recorded is there even if everything is killed.

    The file is the owner's alone (mode 0600). One that is there already is never touched: a number is added to the
    name (`run-2.trace`), since a host starts a cartridge by the same command again and again. `path` is the file's.
    Raises TraceError if it cannot be made.
    """

    def __init__(
        self, path: Path, command: Sequence[str], *, payloads: bool, settings: dict[str, Any] | None = None
    ) -> None:
        self.path, self._file = _create(path)
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.write(Head(VERSION, list(command), started, payloads, settings))

    def write(self, *lines: Head | Record) -> None:
        """Append lines in one write. Raises OSError, as when the disk is full."""
        self._file.write(b"".join(_encode(line) + b"\n" for line in lines))

    def close(self) -> None:
        """Close the file, once."""
        self._file.close()

    def remove(self) -> None:
        """Close and remove the file: nothing was recorded."""
        self.close()
        self.path.unlink(missing_ok=True)


def _create(path: Path) -> tuple[Path, IO[bytes]]:
    names = chain([path], (path.with_stem(f"{path.stem}-{number}") for number in range(2, _MOST_STARTS)))
    for name in names:
        try:
            return name, os.fdopen(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0)
        except FileExistsError:
            continue
        except (OSError, ValueError) as error:
            raise TraceError(f"cannot write the trace {name}: {getattr(error, 'strerror', error)}") from None
    raise TraceError(f"{path} and {_MOST_STARTS} others of its name are there already: remove some, or give another")


def read_trace(path: Path) -> Trace:
    """Read a trace.

    Raises TraceError, naming the line, for a file that is no trace or one of a later version.
    """
    try:
        with path.open("rb") as file:
            return _read(path, file)
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror}") from None


def _read(path: Path, file: IO[bytes]) -> Trace:
    first = file.readline(_LONGEST_LINE)
    if not first.endswith(b"\n"):
        raise TraceError(f"{path} is no trace, or its recorder was killed at once: it holds no whole line")
    try:
        head = _decode_head(first)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise TraceError(f"{path} is no trace: its first line is not a head ({error})") from None
    if head.version != VERSION:
        raise TraceError(f"{path} is of trace version {head.version} and this program reads {VERSION}: update it")
    records: list[Record] = []
    for number in count(2):
        line = file.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            if len(line) == _LONGEST_LINE:
                raise TraceError(f"{path}, line {number}: it is longer than any frame")
            return Trace(head, records, torn=bool(line))
        try:
            records.append(_decode_record(line))
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise TraceError(f"{path}, line {number}: {error}") from None
    raise AssertionError("count has no end")
