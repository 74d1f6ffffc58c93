"""Loading: once for all who wait, with a reason when it fails, and nothing left behind."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from threading import Event

import pytest

from capdag.cartridge import CartridgeError
from cartridges.llama_cpp import engine as engine_module
from cartridges.llama_cpp import loading
from cartridges.llama_cpp.engine import Engine
from cartridges.llama_cpp.settings import Settings
from tests.tiny_gguf import ALPHABET

from .asker import PATIENCE, Asker, CancelledError


def fails(path: Path) -> CartridgeError:
    with pytest.raises(CartridgeError) as caught:
        Asker().chat(Engine(Settings(model="m", path=str(path), slots=1)))
    assert (caught.value.code, caught.value.attribution) == ("MODEL_LOAD_FAILED", "environment")
    return caught.value


def test_missing_file(tmp_path: Path) -> None:
    assert "missing.gguf cannot be read: No such file or directory" in str(fails(tmp_path / "missing.gguf"))


def test_junk(tmp_path: Path) -> None:
    path = tmp_path / "junk.gguf"
    path.write_bytes(b"this is no model" * 100)
    assert "it starts with b'this' in place of b'GGUF'" in str(fails(path))


@pytest.mark.parametrize("share", [0.00001, 0.001, 0.1, 0.9])
def test_cut_short(alphabet_model: Path, tmp_path: Path, share: float) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(alphabet_model.read_bytes()[: int(share * alphabet_model.stat().st_size)])
    assert "it was cut short" in str(fails(path))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"llama", b"lxama", "unknown model architecture: 'lxama'"),
        (b"output_norm.weight", b"outputXnorm.weight", "tensor 'output_norm.weight' not found"),
    ],
)
def test_the_reason_that_only_the_engine_knows(
    alphabet_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], old: bytes, new: bytes, reason: str
) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(alphabet_model.read_bytes().replace(old, new))
    assert reason in str(fails(path))
    assert reason in capfd.readouterr().err  # it is on stderr as well


def test_the_next_request_tries_again(alphabet_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "late.gguf"
    engine = Engine(Settings(model="m", path=str(path), slots=1, context=256))
    with pytest.raises(CartridgeError, match="No such file"):
        Asker().chat(engine)
    shutil.copy(alphabet_model, path)
    asker = Asker().chat(engine)
    assert asker.text() == ALPHABET
    assert [fraction for fraction, _ in asker.reports] == [0.0, 1.0]
    engine._server = None


def test_the_engine_is_not_installed(alphabet_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    assert "pip install 'capdag-trio[llama]'" in str(fails(alphabet_model))


def test_a_library_of_the_engine_is_not_installed(alphabet_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_openmp(*_: object) -> None:
        raise ImportError("libgomp.so.1: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(loading, "_construct", without_openmp)
    said = str(fails(alphabet_model))
    assert "sudo apt install libgomp1" in said
    assert "pip install" not in said


@pytest.fixture
def held_load(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], Event]:
    """Count the real loads, and hold each back until the event is set."""
    calls: list[int] = []
    go = Event()

    def load(settings: Settings, report: loading.Report) -> object:
        calls.append(1)
        assert go.wait(PATIENCE)
        report(0.5, "held")
        return loading.load(settings, report)

    monkeypatch.setattr(engine_module, "load", load)
    return calls, go


def started(engine: Engine, count: int) -> list[Asker]:
    askers = [Asker() for _ in range(count)]
    for asker in askers:
        asker.start(lambda asker=asker: asker.chat(engine))
    return askers


def test_many_at_once_load_once(alphabet_model: Path, held_load: tuple[list[int], Event]) -> None:
    calls, go = held_load
    engine = Engine(Settings(model="m", path=str(alphabet_model), slots=2, context=256))
    askers = started(engine, 5)
    go.set()
    assert [asker.wait().text() for asker in askers] == [ALPHABET] * 5
    assert len(calls) == 1
    engine._server = None


def test_many_at_once_share_the_failure(tmp_path: Path, held_load: tuple[list[int], Event]) -> None:
    calls, go = held_load
    engine = Engine(Settings(model="m", path=str(tmp_path / "none.gguf")))
    first = started(engine, 1)
    while not calls:
        pass
    rest = started(engine, 3)
    while len(engine._changed._waiters) < 3:
        pass
    go.set()
    for asker in first + rest:
        with pytest.raises(CartridgeError, match="No such file"):
            asker.wait()
    assert len(calls) == 1


def test_a_cancelled_loader_hands_over(alphabet_model: Path, held_load: tuple[list[int], Event]) -> None:
    calls, go = held_load
    engine = Engine(Settings(model="m", path=str(alphabet_model), slots=2, context=256))
    (loader,) = started(engine, 1)
    while not calls:
        pass
    (waiter, bored) = started(engine, 2)
    bored.cancel()
    with pytest.raises(CancelledError):
        bored.wait()
    loader.cancel()
    go.set()
    with pytest.raises(CancelledError):
        loader.wait()
    assert waiter.wait().text() == ALPHABET
    assert len(calls) == 2
    engine._server = None


def test_one_request_may_use_the_whole_context(alphabet_model: Path) -> None:
    engine = Engine(Settings(model="m", path=str(alphabet_model), slots=3, context=256))
    asker = Asker().chat(engine, "x" * 200, ignore_eos=True)
    assert asker.usage["total_tokens"] == 256
    engine._server = None


def test_context_is_no_more_than_the_model_was_trained_for(alphabet_model: Path) -> None:
    engine = Engine(Settings(model="m", path=str(alphabet_model), slots=1, context=8192))
    with pytest.raises(CartridgeError) as caught:
        Asker().chat(engine, "x" * 3000)
    assert caught.value.detail["limit"] == 2048
    engine._server = None


def test_a_long_temporary_folder(alphabet_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    engine = Engine(Settings(model="m", path=str(alphabet_model), slots=1, context=256))
    assert Asker().chat(engine).text() == ALPHABET
    assert list(folder.iterdir()) == []
    engine._server = None
