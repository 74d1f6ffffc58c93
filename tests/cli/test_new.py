"""`capdag new`: what it makes is clean, tested, and answers over HTTP at once; what it cannot make, it says why."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from openai import OpenAI

from capdag.cli import main
from capdag.cli._new_caps import quote, read_caps
from capdag.conformance import Settings, Verdict, as_text, check
from capdag.errors import ConfigError
from tests.cli.servers import serving

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent

CAPS = (
    "--cap", "cap:in=media:text;out=media:text;shout",
    "--cap", 'cap:in="media:text;enc=utf-8";out="media:word;list";split-up',
    "--cap", "cap:in=media:void;name;out=media:text",
    "--cap", "cap:in=media:text;out=media:void;swallow",
)  # fmt: skip
MORE_CAPS = ("--cap", "cap:in=media:void;list-all;out=media:list", "--cap", "cap:in=media:void;out=media:void;class")
PROJECTS = {
    "parrot": (),
    "parrot_async": ("--async",),
    "many": (*CAPS, *MORE_CAPS),
    "many_async": ("--async", *CAPS),
    "a_cartridge_with_quite_a_long_name_as_some_have": (),
}


def new(folder: Path, *words: str) -> Result:
    """Run `capdag new` in a folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        return CliRunner().invoke(main, ["new", *words])
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a project of every kind."""
    made = tmp_path_factory.mktemp("projects")
    for name, options in PROJECTS.items():
        result = new(made, name, *options)
        assert result.exit_code == 0, result.output
    return made


def run(folder: Path, *command: str | Path) -> None:
    """Run a tool over all the projects; fail with what it says."""
    paths = os.pathsep.join(map(str, [ROOT, *(folder / name for name in PROJECTS)]))
    environment = {**os.environ, "MYPYPATH": paths}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_says_what_to_do_next(tmp_path: Path) -> None:
    result = new(tmp_path, "parrot")
    assert result.output.splitlines()[1:] == [
        "  capdag serve --config parrot/capdag.toml",
        f"  pip --python {sys.executable} install -e parrot    (then `capdag serve` finds it by itself)",
        "  cd parrot && python -m pytest",
    ]
    result = new(tmp_path, "loud", "--cap", "cap:shout")
    assert result.output.splitlines()[1] == "  echo hello | capdag call shout --config loud/capdag.toml"


def test_linters_and_types_are_content(folder: Path) -> None:
    run(folder, SCRIPTS / "ruff", "check")
    run(folder, SCRIPTS / "ruff", "format", "--check")
    # By our own settings, which are strict too, so that the cache of our own check serves both.
    ours = ["--config-file", ROOT / "pyproject.toml", "--cache-dir", ROOT / ".mypy_cache"]
    run(folder, SCRIPTS / "mypy", *ours, *PROJECTS)


def test_their_own_tests_pass(folder: Path) -> None:
    tested = ("parrot_async", "many")  # the tutorial runs those of `parrot`
    # Without the run through the whole protocol, which takes its time: see below.
    options = [
        "-q",
        "-k",
        "not protocol",
        "-p",
        "no:cacheprovider",
        "-o",
        f"pythonpath={' '.join(tested)}",
        "--rootdir",
        folder,
    ]
    run(folder, sys.executable, "-m", "pytest", *options, *tested)


def test_they_can_be_held_to_the_protocol(folder: Path) -> None:
    command = [sys.executable, "-m", "capdag.cartridge", "parrot_async.cartridge"]
    report = check(command, Settings(cwd=folder / "parrot_async"), only=["manifest", "answer", "worker", "eof-busy"])
    assert report.passed, as_text(report)
    assert len(report.of(Verdict.PASS)) == 4, as_text(report)


def install(project: Path, site: Path) -> None:
    """Do what `pip install -e` does, without the network: metadata, and a path to the project."""
    facts = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    info = site / f"{facts['name']}-{facts['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {facts['name']}\nVersion: {facts['version']}\n")
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in facts["entry-points"].items()
    )
    (info / "entry_points.txt").write_text(points)


@pytest.fixture
def installed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install the project `parrot_async`."""
    install(folder / "parrot_async", tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), str(folder / "parrot_async")]))
    return "parrot_async"


def test_any_openai_client_gets_a_streamed_answer(folder: Path, tmp_path: Path, installed: str) -> None:
    (tmp_path / "models").mkdir()
    options = ["--port", "0", "--models", str(tmp_path / "models"), "--config", str(folder / "parrot" / "capdag.toml")]
    with serving(tmp_path / "run", *options) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        assert [model.id for model in client.models.list()] == ["parrot", installed]
        for model in ("parrot", installed):
            stream = client.chat.completions.create(
                model=model,
                stream=True,
                stream_options={"include_usage": True},
                messages=[{"role": "user", "content": "hello out there"}],
            )
            pieces = list(stream)
            texts = [choice.delta.content for chunk in pieces for choice in chunk.choices if choice.delta.content]
            assert texts == ["You ", "said: ", "hello ", "out ", "there "]
            assert pieces[-1].usage is not None
            assert pieces[-1].usage.completion_tokens == 5
        client.close()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Foo-Bar", "try 'foo_bar'"),
        ("1st", "try 'st'"),
        ("_x", "try 'x'"),
        ("ü", "must be lower-case letters, digits and _"),
        ("class", "'class' is Python's own: the package could not be imported; try 'my_class'"),
        ("json", "'json' is Python's own"),
        ("trio", "a package 'trio' is here already"),
        ("tests", "a package 'tests' is here already"),
        ("echo", "a cartridge 'echo' is installed already"),
        ("", "'' must be lower-case letters, digits and _, a letter first"),
        ("a" * 300, "aaaaaaaaaaaaaaaaaaaa… has 300 letters: 64 are the most"),
    ],
)
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str, why: str) -> None:
    result = new(tmp_path, name)
    assert result.exit_code == 2
    assert why in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    script = f"cd gone && rmdir ../gone && exec {SCRIPTS / 'capdag'} new parrot"
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        2,
        b"Error: the current folder is gone: change to one that is there\n",
    )


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "parrot").mkdir()
    result = new(tmp_path, "parrot")
    assert result.exit_code == 2
    assert "is there already: choose another name, or remove it" in result.output
    assert list((tmp_path / "parrot").iterdir()) == []


def test_nothing_is_left_of_a_project_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, *_args: object, **_kwargs: object) -> int:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", fail)
    result = new(tmp_path, "parrot")
    assert result.exit_code == 2
    assert "No space left on device; nothing is left of" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("caps", "why"),
    [
        (["shout"], "is no cap URN"),
        (["cap:effect=none"], "which every cartridge has anyway"),
        (["cap:shout", "cap:in=media:text;shout"], "give each a tag of its own"),
        (["cap:manifest"], "'manifest', which is a command of every cartridge: give it another tag"),
        (["cap:-x"], "'-x', which is an option to a command line: give it another tag"),
        (['cap:in="media:live;cam";look'], "is about a live feed"),
        (['cap:out="media:live;cam";look'], "is about a live feed"),
    ],
)
def test_a_cap_that_cannot_be_is_refused(caps: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_caps(caps)


@pytest.mark.parametrize(
    ("urn", "alias", "function"),
    [
        ("cap:to-en;translation", "to-en", "to_en"),
        ("cap:class", "class", "do_class"),
        ("cap:main", "main", "do_main"),
        ("cap:model=x", "model", "model"),
        ("cap:in=media:text;out=media:other", "run", "run"),
        ("cap:2x", "2x", "do_2x"),
    ],
)
def test_a_cap_is_named_after_its_tag(urn: str, alias: str, function: str) -> None:
    (cap,) = read_caps([urn])
    assert (cap.alias, cap.function, cap.constant) == (alias, function, function.upper())


@pytest.mark.parametrize("text", ["plain", 'with "quotes"', "a\nb", "it's"])
def test_quoted_text_reads_back(text: str) -> None:
    assert eval(quote(text)) == text
