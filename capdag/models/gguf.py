"""What a GGUF file says about its model, read from the header alone.

Shapes: magic "GGUF", version (u32), tensor count (u64), entry count (u64); the entries (key, type, value); one record a
tensor (name, dimensions, type, offset); padding; tensor data. All little-endian. Files come from strangers, so every
count and length is checked against what is left of the file before it is used, and the header as a whole is bounded.
"""

from __future__ import annotations

import math
import os
import re
import stat
import struct
import sys
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from capdag.errors import AttributionClass, CapdagError

MAX_HEADER: Final = 64 * 1024 * 1024
"""Most bytes of entries and tensor records that are read. The largest known vocabularies take about 15 MB."""

_MAX_KEY: Final = 65_535
_MAX_DIMENSIONS: Final = 4
_READ: Final = 1024 * 1024

_U8, _I8, _U16, _I16, _U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _U64, _I64, _F64 = range(13)
_SCALARS: Final = {
    _U8: "<B", _I8: "<b", _U16: "<H", _I16: "<h", _U32: "<I", _I32: "<i", _F32: "<f",
    _BOOL: "<?", _U64: "<Q", _I64: "<q", _F64: "<d",
}  # fmt: skip

_QUANTISATIONS: Final = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE",
}  # fmt: skip

_TYPES: Final = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74),
    18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2),
    26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
    40: (64, 36), 41: (128, 18),
}  # fmt: skip
"""Of each tensor type: how many values make a block, and a block's bytes."""


class GgufError(CapdagError):
    """A file is missing, is no GGUF or is broken. The text names the file and says what is wrong with it."""

    code = "MODEL_LOAD_FAILED"
    attribution = AttributionClass.ENVIRONMENT


class ModelFacts(NamedTuple):
    """What the header says. `context_length` is what the model was trained for, in tokens, 0 if it does not say.

    `longest_token` is the most bytes that a token has as the file writes it, 0 if it lists none. In no vocabulary is
    that less than the bytes of text that the token stands for: letters for bytes, marks and escapes only add.
    """

    architecture: str
    name: str
    context_length: int
    quantisation: str
    has_chat_template: bool
    longest_token: int


class _Array(NamedTuple):
    """What is kept of an array: the bytes of its longest text, 0 if it has none."""

    longest: int


def read_facts(path: Path) -> ModelFacts:
    """Read the header of `path`. Raises GgufError with the reason; loads no tensor."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            return _read(path, file)
    except OSError as error:
        raise GgufError(f"{path} cannot be read: {error.strerror or error}") from None


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting: a pipe would have us wait for who writes into it."""
    if sys.platform != "win32":
        flags |= os.O_NONBLOCK
    return os.open(path, flags)


def _read(path: Path, file: BinaryIO) -> ModelFacts:
    facts = os.fstat(file.fileno())
    if not stat.S_ISREG(facts.st_mode):
        raise GgufError(f"{path} is not a file with data. Give the path of a .gguf file.")
    size = facts.st_size
    header = _Header(path, file, size)
    tensors = header.start()
    entries = header.entries()
    alignment = entries.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise header.broken(f"its alignment is {alignment!r}, not a power of two")
    end = header.tensors_end(tensors)
    data = -(-header.position // alignment) * alignment
    if end and data + end > size:
        raise header.broken(f"it has {size:,} bytes and its tensors need {data + end:,}: it was cut short")
    found = _facts(header, entries)
    if not end:
        raise header.broken("it has no tensors: it is a vocabulary, not a model")
    return found


def _facts(header: _Header, entries: dict[str, object]) -> ModelFacts:
    architecture = entries.get("general.architecture")
    if not isinstance(architecture, str) or not re.fullmatch(r"[\w.-]{1,64}", architecture, re.ASCII):
        raise header.broken("it does not name its architecture")
    name = entries.get("general.name")
    context = entries.get(f"{architecture}.context_length", 0)
    file_type = entries.get("general.file_type")
    template, tokens = entries.get("tokenizer.chat_template"), entries.get("tokenizer.ggml.tokens")
    return ModelFacts(
        architecture,
        name if isinstance(name, str) else "",
        context if isinstance(context, int) and context > 0 else 0,
        _QUANTISATIONS.get(file_type, "") if isinstance(file_type, int) else "",
        isinstance(template, str) and bool(template),
        tokens.longest if isinstance(tokens, _Array) else 0,
    )


class _Header:
    """A bounded, forward-only reader over the file's beginning."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.position = 0
        self._path = path
        self._file = file
        self._limit = min(size, MAX_HEADER)
        self._size = size
        self._buffer = b""
        self._at = 0

    def broken(self, what: str) -> GgufError:
        """Return the error for a fault of this file."""
        return GgufError(f"{self._path} is not a usable GGUF file: {what}. Fetch or copy the file again.")

    def start(self) -> int:
        """Check magic and version, and return the number of tensors; the entry count stays to be read."""
        magic = self._take(min(4, self._size))
        if magic != b"GGUF":
            raise self.broken(f"it starts with {magic!r} in place of b'GGUF'" if magic else "it is empty")
        version = self._number("<I")
        if version not in (2, 3):
            raise self.broken(f"its version is {version}, and 2 or 3 is needed")
        return self._number("<Q")

    def entries(self) -> dict[str, object]:
        """Read every entry. The items of arrays are passed over."""
        found: dict[str, object] = {}
        for _ in range(self._count("metadata", 12)):
            key = self._text(_MAX_KEY, "the name of an entry")
            found[key] = self._value(self._number("<I"), key)
        return found

    def tensors_end(self, tensors: int) -> int:
        """Walk the tensor records and return where in the data the last tensor ends. One of an unknown type counts
        with its start."""
        end = 0
        if tensors > self._left() // 24:
            raise self._no_room(tensors, "tensors")
        for _ in range(tensors):
            if not self._text(_MAX_KEY, "the name of a tensor"):
                raise self.broken("a tensor has no name")
            dimensions = self._number("<I")
            if dimensions > _MAX_DIMENSIONS:
                raise self.broken(f"a tensor has {dimensions:,} dimensions, and {_MAX_DIMENSIONS} is the most")
            values = math.prod(self._number("<Q") for _ in range(dimensions))
            block, size = _TYPES.get(self._number("<I"), (1, 0))
            end = max(end, self._number("<Q") + values // block * size)
        return end

    def _value(self, kind: int, key: str) -> object:
        if kind == _STRING:
            return self._text(MAX_HEADER, f"entry {key!r}")
        if kind == _ARRAY:
            return self._pass_array(key)
        form = _SCALARS.get(kind)
        if form is None:
            raise self.broken(f"entry {key!r} has the unknown type {kind}")
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _pass_array(self, key: str) -> _Array:
        kind = self._number("<I")
        if kind == _STRING:
            longest = 0
            for _ in range(self._count(key, 8)):
                length = self._number("<Q")
                longest = max(longest, length)
                self._skip(length)
            return _Array(longest)
        form = _SCALARS.get(kind)
        if form is None:
            raise self.broken(f"the items of {key!r} have the unusable type {kind}")
        self._skip(self._count(key, struct.calcsize(form)) * struct.calcsize(form))
        return _Array(0)

    def _text(self, most: int, what: str) -> str:
        length = self._number("<Q")
        if length > most:
            raise self.broken(f"{what} claims {length:,} bytes")
        return self._take(length).decode("utf-8", "replace")

    def _count(self, what: str, least: int) -> int:
        count = self._number("<Q")
        if count > self._left() // least:
            raise self._no_room(count, f"items of {what}")
        return count

    def _no_room(self, count: int, what: str) -> GgufError:
        return self.broken(f"it has no room for the {count:,} {what} that it claims: it was cut short, or overwritten")

    def _number(self, form: str) -> int:
        value: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return value

    def _left(self) -> int:
        return self._limit - self.position

    def _take(self, count: int) -> bytes:
        self._check_room(count)
        end = self._at + count
        if end > len(self._buffer):
            self._buffer = self._buffer[self._at :] + self._file.read(max(_READ, count))
            self._at, end = 0, count
        if end > len(self._buffer):
            raise self.broken("it became shorter while it was read")
        taken = self._buffer[self._at : end]
        self._at = end
        self.position += count
        return taken

    def _skip(self, count: int) -> None:
        self._check_room(count)
        held = min(count, len(self._buffer) - self._at)
        self._at += held
        if count > held:
            self._file.seek(count - held, 1)
        self.position += count

    def _check_room(self, count: int) -> None:
        if count <= self._left():
            return
        if self.position + count <= self._size:
            raise self.broken(f"its header is larger than {MAX_HEADER:,} bytes")
        raise self.broken(f"it ends after {self._size:,} bytes, in the middle of its header: it was cut short")
