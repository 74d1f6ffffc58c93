"""The command's texts, and what it refuses before it starts anything."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from contextlib import nullcontext
from importlib.metadata import Distribution
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from capdag.cli import main
from capdag.cli._folders import FolderError, runtime_folder
from capdag.cli._http import gateway_settings, shutdown_limit
from capdag.cli._settings import host_settings, switch_settings
from capdag.config import Config, GatewayConfig, HostConfig, SwitchConfig
from capdag.errors import ConfigError
from capdag.gateway import GatewaySettings
from capdag.host import HostSettings
from capdag.models import DEFAULT_MODEL
from capdag.relay import SwitchSettings
from capdag.wire import NetworkPolicy

COMMANDS = ("serve", "ps", "call", "explain", "check", "models", "new", "host", "gateway", "trace")


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="capdag")


def test_help_names_every_command() -> None:
    text = _run("--help").output
    assert set(re.findall(r"^  (\w+)  ", text.partition("Commands:")[2], re.MULTILINE)) == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_examples_that_hold(command: str) -> None:
    text = _run(command, "--help").output
    examples = re.findall(rf"^ +(?:echo hi \| )?capdag ({command}[^\n]*)$", text, re.MULTILINE)
    assert examples
    named = main.commands[command]
    parts = [named, *(named.commands.values() if isinstance(named, click.Group) else ())]
    known = {option for part in parts for parameter in part.params for option in parameter.opts}
    assert {option for example in examples for option in re.findall(r" (--[\w-]+)", example)} <= known


def test_every_option_is_explained() -> None:
    for name, command in main.commands.items():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.opts}"


def test_help_is_answered_without_an_event_loop_or_a_server() -> None:
    code = "import sys; from capdag.cli import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert loaded & {"trio", "quart", "hypercorn", "cbor2", "capdag.host", "capdag.relay"} == set()


def test_the_version_is_told() -> None:
    assert re.fullmatch(r"capdag-trio \S.*\n", _run("--version").output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--prot", "1"], "'--port'"),
        (["serve", "--port", "65536"], "65536 is not in the range 0<=x<=65535"),
        (["host"], "give --listen ADDRESS, where an engine connects, or --connect ADDRESS"),
        (["host", "--listen", "tcp:80"], "'tcp:80' is no address: the port is missing; write tcp:HOST:PORT"),
        (["host", "--listen", "tcp:0.0.0.0:80"], "tcp:0.0.0.0:80 is open to strangers"),
        (["host", "--listen", "unix:a", "--connect", "unix:a"], "unix:a is given 2 times; give each address once"),
        (["gateway"], "give --hosts ADDRESS for each host that listens, or --accept ADDRESS for hosts that connect"),
        (["gateway", "--hosts", "unix:a,tpc:b:1"], "'tpc:b:1' is no address: did you mean tcp:?"),
        (["gateway", "--hosts", "unix:a", "--tls-ca", "x"], "--tls-ca is given, but no address begins with tls: or"),
        (["gateway", "--hosts", "unix:a", "--token-file", "x"], "--token-file is given, but unix sockets go by the"),
        (["gateway", "--hosts", "tls:a:1", "--tls-ca", "none.pem"], "cannot read none.pem --tls-ca : No such file"),
        (["gateway", "--accept", "tls:127.0.0.1:0"], "listening with TLS needs a certificate and its key"),
        (["models", "fetch", "SmolLM2"], "did you mean 'SmolLM2-135M-Instruct'?"),
        (["serve", "--config", "none.toml"], "cannot read none.toml: No such file or directory"),
        (["call", "echo", "--cartridge", "'"], "cannot be split as a shell does"),
        (["serve", "--models", "no/such"], "the models folder no/such does not exist: give another with --models"),
        (["call", "echo", "--models", __file__], f"the models folder {__file__} is no folder"),
        (["models", "--models", "no/such"], "the models folder no/such does not exist"),
        (["serve", "--host", "nosuch.invalid"], "gateway.host = 'nosuch.invalid' is no address of this machine"),
        (["serve", "--host", "192.0.2.1"], "gateway.host = '192.0.2.1' is no address of this machine"),
    ],
)
def test_wrong_use_is_exit_code_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    if "fetch" in arguments:
        arguments = [*arguments, "--models", str(tmp_path)]
    result = _run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("(", " ").replace(")", " ").split())


def test_models_are_listed_with_what_is_wrong_with_them(tmp_path: Path, alphabet_model: Path) -> None:
    (tmp_path / "alphabet.gguf").symlink_to(alphabet_model)
    (tmp_path / "empty.gguf").touch()
    lines = _run("models", "--models", str(tmp_path)).output.splitlines()
    assert lines[0] == f"models in {tmp_path}:"
    assert re.fullmatch(r"  alphabet  2\.0 MB  context 2,048 tokens  llama  F32", lines[1])
    assert lines[2].startswith(f"  empty  0.0 MB  BROKEN: {tmp_path}/empty.gguf is not a usable GGUF file: it is empty")


def test_a_folder_without_models_says_how_to_get_one(tmp_path: Path) -> None:
    output = _run("models", "--models", str(tmp_path)).output
    assert f"none; `capdag models fetch --models {tmp_path}` brings a small one" in output


def test_two_models_of_one_slug_are_told_as_a_conflict(tmp_path: Path, alphabet_model: Path) -> None:
    for name in ("my model", "my-model"):
        (tmp_path / f"{name}.gguf").symlink_to(alphabet_model)
    lines = _run("models", "--models", str(tmp_path)).output.splitlines()
    assert lines[-1].startswith("  CONFLICT: ")
    assert lines[-1].endswith("would both be served as 'my-model': rename or move one of them")


def test_fetch_lists_the_catalogue_and_takes_a_file(tmp_path: Path) -> None:
    assert DEFAULT_MODEL in _run("models", "fetch", "--help").output
    result = _run("models", "fetch", "--config", str(tmp_path / "none.toml"))
    assert result.exit_code == 2
    assert "none.toml: No such file or directory" in result.output


def test_output_that_cannot_be_written_is_one_line_of_error(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise RuntimeError('nothing is imported from the current folder')")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "capdag", "models", "--models", "."],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
        )
    assert (done.returncode, done.stderr) == (1, b"Error: cannot write to stdout: No space left on device\n")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["models", "--help"], ["check", "--list"]])
def test_output_that_nobody_reads_ends_the_command_quietly(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as unread:
        done = subprocess.run([sys.executable, "-m", "capdag", *arguments], stdout=unread, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("arguments", [["ps"], ["ps", "--port", "7"], ["ps", "--reset", "echo"]])
def test_ps_without_a_server_says_so(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "capdag").mkdir(mode=0o700)
    (tmp_path / "capdag" / "7.sock").touch()
    result = _run(*arguments)
    assert result.exit_code == 1
    assert "Error: no server of this user runs" in result.output
    assert f"with its socket in {tmp_path}/capdag (chosen by XDG_RUNTIME_DIR)" in result.output
    assert "start one with capdag serve" in result.output


@pytest.mark.parametrize("arguments", [["ps"], ["ps", "--port", "7"], ["ps", "--reload"]])
def test_ps_names_a_server_that_does_not_answer(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("capdag.cli._query.PATIENCE", 0.1)
    (tmp_path / "capdag").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as frozen:
        frozen.bind(str(tmp_path / "capdag" / "7.sock"))
        frozen.listen()
        result = _run(*arguments)
    assert result.exit_code == 1
    assert f"Error: port 7 (pid {os.getpid()}) did not answer in 0.1 s" in result.output


def test_ctrl_c_before_a_command_watches_for_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("capdag.cli.check_owner", interrupted)
    result = _run("models")
    assert (result.exit_code, result.output) == (130, "Interrupted\n")
    loading = (
        "import sys; from capdag.__main__ import main\n"
        "class Loading:\n def find_spec(self, *_): raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Loading()); main()"
    )
    done = subprocess.run([sys.executable, "-c", loading], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"Interrupted\n")


def test_the_public_package_beside_us_is_detected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info = tmp_path / "capdag-1.524.58.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: capdag\nVersion: 1.524.58\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert Distribution.from_name("capdag").version == "1.524.58"
    result = _run("models")
    assert result.exit_code == 1
    assert "the package capdag 1.524.58 is installed in this environment" in result.output
    assert "pip uninstall capdag" in result.output


def test_the_runtime_folder_must_be_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_folder() == tmp_path / "capdag"
    (tmp_path / "capdag").chmod(0o755)
    with pytest.raises(FolderError, match="must be a folder of this user's alone"):
        runtime_folder()
    (tmp_path / "capdag").rmdir()
    (tmp_path / "capdag").symlink_to(tmp_path)
    with pytest.raises(FolderError, match="must be a folder of this user's alone"):
        runtime_folder()
    (tmp_path / "capdag").unlink()
    for mode, message in [(0o777, f"others may write to {tmp_path}"), (0o770, "others may write"), (0o1777, "")]:
        tmp_path.chmod(mode)
        with pytest.raises(FolderError, match=message) if message else nullcontext():
            assert runtime_folder() == tmp_path / "capdag"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    with pytest.raises(FolderError, match=r"cannot make .*: No such file or directory; set XDG_RUNTIME_DIR"):
        runtime_folder()


def test_without_a_runtime_folder_the_temporary_one_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert runtime_folder().parent == tmp_path
    assert runtime_folder().stat().st_mode & 0o777 == 0o700


def test_the_file_has_every_setting_of_the_rooms_and_no_other() -> None:
    own = {"host", "port", "without_keys", "links"}
    assert set(GatewayConfig.__struct_fields__) - own == set(GatewaySettings._fields)
    assert set(HostConfig.__struct_fields__) - own == set(HostSettings.__struct_fields__) - {"limits"}
    assert set(SwitchConfig.__struct_fields__) == set(SwitchSettings._fields) - {"limits", "policy"}


def test_settings_reach_their_rooms() -> None:
    config = Config(
        gateway=GatewayConfig(write_deadline=3, allowed_hosts=("models.lan",)),
        host=HostConfig(policy="offline", idle_timeout=60),
        switch=SwitchConfig(max_queued=9),
    )
    assert gateway_settings(config) == GatewaySettings(write_deadline=3, allowed_hosts=("models.lan",))
    assert host_settings(config) == HostSettings(policy=NetworkPolicy.OFFLINE, idle_timeout=60)
    assert switch_settings(config) == SwitchSettings(policy=NetworkPolicy.OFFLINE, max_queued=9)


def test_a_shutdown_has_less_than_ten_seconds() -> None:
    assert shutdown_limit(Config()) <= 9


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="heartbeat_timeout must be above 0 and below heartbeat_interval"):
        host_settings(Config(host=HostConfig(heartbeat_interval=5)))
