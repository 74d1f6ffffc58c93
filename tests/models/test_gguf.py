"""Reading GGUF headers: real ones as the reference package does, hostile ones with a reason and no more work."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capdag.models import GgufError, ModelFacts, read_facts
from capdag.models import gguf as reader
from tests.tiny_gguf import make_alphabet

STRING, ARRAY, UINT32 = 8, 9, 4


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def entry(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


ARCHITECTURE = entry(b"general.architecture", STRING, text(b"llama"))


def header(*entries: bytes, version: int = 3, tensors: int = 0, count: int | None = None, rest: bytes = b"") -> bytes:
    count = len(entries) if count is None else count
    return b"GGUF" + struct.pack("<IQQ", version, tensors, count) + b"".join(entries) + rest


def bare(*entries: bytes) -> bytes:
    """Return a model of four numbers."""
    whole = header(*entries, tensors=1, rest=text(b"t") + struct.pack("<IQIQ", 1, 4, 0, 0))
    return whole + bytes(-len(whole) % 32 + 16)


def test_the_alphabet_model(alphabet_model: Path) -> None:
    assert read_facts(alphabet_model) == ModelFacts("llama", "tiny-alphabet", 2048, "F32", True, len("<|endoftext|>"))


def test_a_model_without_chat_template(tmp_path: Path) -> None:
    facts = read_facts(make_alphabet(tmp_path / "base.gguf", chat=False, context=77))
    assert (facts.has_chat_template, facts.context_length) == (False, 77)


def test_a_header_that_says_little(tmp_path: Path) -> None:
    path = tmp_path / "bare.gguf"
    path.write_bytes(bare(ARCHITECTURE))
    assert read_facts(path) == ModelFacts("llama", "", 0, "", False, 0)


def test_the_longest_token_is_counted_in_bytes(tmp_path: Path) -> None:
    tokens = struct.pack("<IQ", STRING, 3) + text(b"ab") + text("é▁".encode()) + text(b"")
    path = tmp_path / "tokens.gguf"
    path.write_bytes(bare(ARCHITECTURE, entry(b"tokenizer.ggml.tokens", ARRAY, tokens)))
    assert read_facts(path).longest_token == 5


def test_tables_are_those_of_the_reference() -> None:
    for kind, sizes in gguf.GGML_QUANT_SIZES.items():
        assert reader._TYPES.get(int(kind), sizes) == sizes
    for name, number in gguf.LlamaFileType.__members__.items():
        plain = name.removeprefix("MOSTLY_").removeprefix("ALL_")
        assert reader._QUANTISATIONS.get(int(number), plain) == plain


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b"GG", "starts with b'GG'"),
        (b"GGML" + bytes(100), "starts with b'GGML'"),
        (b"GGUF" + struct.pack("<I", 1), "version is 1"),
        (b"GGUF" + struct.pack(">I", 3), "version is 50331648"),
        (header(), "does not name its architecture"),
        (header(entry(b"general.architecture", UINT32, bytes(4))), "does not name its architecture"),
        (
            header(entry(b"general.architecture", STRING, text(b"llama\0x")), tensors=0),
            "does not name its architecture",
        ),
        (header(ARCHITECTURE, tensors=1, rest=bytes(99)), "a tensor has no name"),
        (header(count=2**60), "no room for the 1,152,921,504,606,846,976 items of metadata"),
        (header(ARCHITECTURE, tensors=2**60), "no room for the 1,152,921,504,606,846,976 tensors"),
        (header(entry(b"a", STRING, struct.pack("<Q", 2**62))), "entry 'a' claims 4,611,686,018,427,387,904 bytes"),
        (header(entry(b"a", STRING, struct.pack("<Q", 1000))), "cut short"),
        (header(entry(b"a", ARRAY, struct.pack("<IQ", STRING, 2**61))), "no room"),
        (header(entry(b"a", ARRAY, struct.pack("<IQ", UINT32, 2**63))), "no room"),
        (header(entry(b"a", ARRAY, struct.pack("<IQ", STRING, 2) + struct.pack("<QQ", 2**63, 0))), "cut short"),
        (header(entry(b"a", ARRAY, struct.pack("<IQ", ARRAY, 1))), "items of 'a' have the unusable type 9"),
        (header(entry(b"a", 99, b"")), "unknown type 99"),
        (header(text(b"k" * 70_000)), "name of an entry claims 70,000 bytes"),
        (header(ARCHITECTURE, entry(b"general.alignment", UINT32, struct.pack("<I", 0))), "alignment is 0"),
        (header(ARCHITECTURE, entry(b"general.alignment", UINT32, struct.pack("<I", 33))), "alignment is 33"),
        (header(ARCHITECTURE, tensors=1, rest=text(b"t") + struct.pack("<I", 99) + bytes(99)), "99 dimensions"),
        (header(ARCHITECTURE, tensors=1, rest=text(b"t") + struct.pack("<IQIQ", 1, 2**40, 0, 0)), "cut short"),
    ],
)
def test_broken(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    with pytest.raises(GgufError) as caught:
        read_facts(path)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)


def test_every_beginning_of_a_file_is_broken(tmp_path: Path) -> None:
    whole = bare(ARCHITECTURE, entry(b"x", ARRAY, struct.pack("<IQ", STRING, 2) + text(b"a") + text(b"b")))
    path = tmp_path / "part.gguf"
    path.write_bytes(whole)
    read_facts(path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(GgufError):
            read_facts(path)


def test_the_last_byte_is_missed(alphabet_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "tail.gguf"
    path.write_bytes(alphabet_model.read_bytes()[:-1])
    with pytest.raises(GgufError, match="cut short"):
        read_facts(path)


def test_a_header_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "endless.gguf"
    path.write_bytes(header(entry(b"a", ARRAY, struct.pack("<IQ", UINT32, 2**25))))
    os.truncate(path, 2**40)  # sparse
    with pytest.raises(GgufError, match="no room"):
        read_facts(path)


@pytest.mark.parametrize("name", ["missing.gguf", "folder", "device", "pipe"])
def test_what_is_no_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GgufError, match=name):
        read_facts(tmp_path / name)


def test_a_vocabulary_alone_is_no_model(alphabet_model: Path, tmp_path: Path) -> None:
    whole = bytearray(alphabet_model.read_bytes())
    whole[8:16] = bytes(8)  # the number of tensors
    (tmp_path / "vocabulary.gguf").write_bytes(whole)
    with pytest.raises(GgufError, match="it has no tensors: it is a vocabulary, not a model"):
        read_facts(tmp_path / "vocabulary.gguf")


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_damage_is_an_answer_or_a_reason(alphabet_model: Path, data: st.DataObject) -> None:
    whole = bytearray(alphabet_model.read_bytes()[:8192])
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, 8191), st.integers(0, 255)), max_size=8)):
        whole[place] = value
    path = alphabet_model.parent.parent / "damaged.gguf"
    path.write_bytes(whole)
    with pytest.raises(GgufError):  # at the least, its tensors are missing
        read_facts(path)
