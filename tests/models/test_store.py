"""The models folder: names, slugs, what is broken."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from capdag.errors import ConfigError
from capdag.models import check_slugs, list_models, models_dir, slug_of


def test_a_folder(alphabet_model: Path, tmp_path: Path) -> None:
    (tmp_path / "maker").mkdir()
    for name in ("Alpha.gguf", "maker/Beta v2.gguf", "big-00001-of-00003.gguf"):
        shutil.copy(alphabet_model, tmp_path / name)
    for name in ("big-00002-of-00003.gguf", "big-00003-of-00003.gguf", "broken.gguf", "readme.txt"):
        (tmp_path / name).write_text("no model")
    found = list_models(tmp_path)
    assert [(model.name, model.slug) for model in found] == [
        ("Alpha", "alpha"),
        ("big", "big"),
        ("broken", "broken"),
        ("maker/Beta v2", "maker/beta-v2"),
    ]
    assert [model.name for model in found if model.problem] == ["broken"]
    assert found[2].facts is None
    assert "in place of b'GGUF'" in found[2].problem
    assert found[0].facts is not None
    assert found[0].facts.quantisation == "F32"
    assert found[0].size == alphabet_model.stat().st_size


def test_no_folder(tmp_path: Path) -> None:
    assert list_models(tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("name", "slug"),
    [("SmolLM2-135M-Instruct", "smollm2-135m-instruct"), ("a/B:c_1.5", "a/b:c_1.5"), ("Ünïcode name", "-n-code-name")],
)
def test_slugs(name: str, slug: str) -> None:
    assert slug_of(name) == slug


def test_two_models_with_one_slug(alphabet_model: Path, tmp_path: Path) -> None:
    for name in ("My Model.gguf", "my-model.gguf"):
        shutil.copy(alphabet_model, tmp_path / name)
    with pytest.raises(ConfigError, match=r"My Model\.gguf and .*my-model\.gguf would both be served as 'my-model'"):
        check_slugs(list_models(tmp_path))


def test_the_usual_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert models_dir() == tmp_path / "capdag" / "models"


def test_what_has_the_name_of_a_model_and_is_none_says_why(alphabet_model: Path, tmp_path: Path) -> None:
    shutil.copy(alphabet_model, tmp_path / "LOUD.GGUF")
    (tmp_path / "folder.gguf").mkdir()
    shutil.copy(alphabet_model, tmp_path / "folder.gguf" / "inner.gguf")
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    problems = {model.name: model.problem for model in list_models(tmp_path)}
    assert list(problems) == ["LOUD", "dangling", "folder", "folder.gguf/inner", "loop", "pipe"]
    assert problems["LOUD"] == problems["folder.gguf/inner"] == ""
    assert "is a folder" in problems["folder"]
    assert "is a link that leads to no file" in problems["dangling"]
    assert "is a link that leads to no file" in problems["loop"]
    assert "is not a file with data" in problems["pipe"]


def test_a_name_that_is_not_utf_8_is_told_as_text(alphabet_model: Path, tmp_path: Path) -> None:
    shutil.copy(alphabet_model, os.fsencode(tmp_path) + b"/bad\xff.gguf")
    shutil.copy(alphabet_model, tmp_path / "good.gguf")
    bad, good = list_models(tmp_path)
    assert (bad.name, bad.slug, bad.has_text_path) == ("bad\\xff", "bad-xff", False)
    assert "its name is not UTF-8: rename it" in bad.problem
    assert good.has_text_path
    (bad.name + bad.problem).encode()
