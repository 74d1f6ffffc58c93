"""`capdag serve` as a process: what it says, how it ends, and what is left when it is killed."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.cli.servers import Server, capdag, environment, eventually, serving
from tests.leaks import alive

UPPER = shlex.join([sys.executable, str(Path(__file__).with_name("upper.py"))])


def _no_models(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "models").mkdir()
    return "--port", "0", "--models", str(tmp_path / "models")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server for tests that only look at it."""
    folder = tmp_path_factory.mktemp("shared")
    options = _no_models(folder)
    (folder / "models" / "torn.gguf").write_bytes(b"GGUF\0\0")
    with serving(folder / "run", *options, "--cartridge", UPPER) as server:
        assert server.url
        yield server


def test_it_says_what_is_served_where(shared: Server) -> None:
    models = shared.runtime.parent / "models"
    assert f"models in {models}:" in shared.output
    assert f"torn  BROKEN: {models}/torn.gguf is not a usable GGUF file" in shared.output
    assert f"cartridge upper: {UPPER}" in shared.output
    assert "cartridge echo: " in shared.output
    admin = Path(shared.wait_for(r"capdag ps reaches it by (\S+\.sock)")[1])
    assert admin.parent == shared.folder
    assert stat.S_IMODE(shared.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(admin.stat().st_mode) == 0o600


def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "run", *_no_models(tmp_path)) as server:
        assert server.url
        assert list(server.folder.iterdir())
        server.send(signal.SIGINT)
        assert server.ended(10) == 0, server.output
        assert list(server.folder.iterdir()) == []
        assert "Traceback" not in server.output


def test_sigterm_ends_it_as_ctrl_c_does(tmp_path: Path) -> None:
    with serving(tmp_path / "run", *_no_models(tmp_path)) as server:
        assert server.url
        server.send(signal.SIGTERM)
        assert server.ended(10) == 0, server.output
        assert list(server.folder.iterdir()) == []


def test_a_second_ctrl_c_hurries_a_drain(tmp_path: Path) -> None:
    with serving(tmp_path / "run", *_no_models(tmp_path)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as half_said:
            half_said.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            )
            half_said.sendall(b"Content-Length: 99\r\n\r\n{")
            time.sleep(0.3)
            server.send(signal.SIGINT)
            server.wait_for("SIGINT: shutting down")
            time.sleep(0.3)
            assert server.process.poll() is None, "it did not wait for the request that is under way"
            server.send(signal.SIGINT)
            assert server.ended(3) == 0, server.output


def test_a_taken_port_is_exit_code_3_and_names_the_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = capdag(tmp_path / "run", "serve", *_no_models(tmp_path), "--port", str(port))
    assert done.returncode == 3
    text = done.stderr.decode()
    assert f"Error: port {port} of 127.0.0.1 is in use: choose another with --port" in text
    assert "Traceback" not in text
    assert list((tmp_path / "run" / "capdag").iterdir()) == []


def test_a_killed_server_leaves_no_process_and_no_socket(tmp_path: Path) -> None:
    with serving(tmp_path / "run", *_no_models(tmp_path)) as server:
        assert server.url
        started = [process.pid for process in server.descendants()]
        assert started, "there is no guardian"
        server.process.kill()
        eventually(lambda: not any(map(alive, started)), 5, "its processes are gone")
        eventually(lambda: list(server.folder.iterdir()) == [], 5, "its socket and run file are gone")


def test_the_next_server_cleans_up_after_one_that_died_with_its_guardian(tmp_path: Path) -> None:
    options = _no_models(tmp_path)
    with serving(tmp_path / "run", *options) as first:
        assert first.url
        guardian = first.find("_guardian_main")
        guardian.kill()
        first.process.kill()
        first.ended()
        left = {path.suffix for path in first.folder.iterdir()}
        assert left == {".sock", ".json"}
    with serving(tmp_path / "run", *options) as second:
        assert second.url
        second.wait_for("cleaned up after the host with process id")
        second.send(signal.SIGINT)
        assert second.ended(10) == 0
        assert list(second.folder.iterdir()) == []


def test_ps_shows_cartridges_and_resets_one(shared: Server) -> None:
    port = shared.url.rpartition(":")[2]
    shown = capdag(shared.runtime, "ps").stdout.decode().splitlines()
    assert shown[0] == f"port {port}"
    assert shown[1].split()[:3] == ["CARTRIDGE", "STATE", "PID"]
    assert any(line.split()[:2] == ["echo", "registered"] for line in shown[2:])
    whole = json.loads(capdag(shared.runtime, "ps", "--json", "--port", port).stdout)
    assert "echo" in [cartridge["id"] for cartridge in whole[port]["host"]["cartridges"]]
    done = capdag(shared.runtime, "ps", "--reset", "echo")
    assert (done.returncode, done.stdout) == (0, b"echo starts again at its next request\n")
    done = capdag(shared.runtime, "ps", "--reset", "ekko")
    assert done.returncode == 1
    assert f"Error: port {port}: there is no cartridge 'ekko'; the cartridges are: echo".encode() in done.stderr


def test_cartridges_are_read_again_on_request(tmp_path: Path) -> None:
    config, told = tmp_path / "capdag.toml", shlex.split(UPPER)
    mine = f'[[cartridge]]\nname = "NAME"\ncommand = {json.dumps(told)}\n'

    def say(text: str) -> subprocess.CompletedProcess[bytes]:
        config.write_text(text)
        return capdag(tmp_path / "run", "ps", "--reload")

    config.write_text(mine.replace("NAME", "one"))
    with serving(tmp_path / "run", *_no_models(tmp_path), "--config", str(config)) as server:
        port = server.url.rpartition(":")[2]
        done = say(mine.replace("NAME", "one") + "keep_alive = 60\n" + mine.replace("NAME", "two"))
        kept = r"\d+ unchanged\n"
        assert re.fullmatch(rf"port {port}: 1 added \(two\), 1 changed \(one\), {kept}", done.stdout.decode())
        eventually(lambda: b"running" in _row(server, "two"), 20, "it runs")
        done = say('[[cartridge]]\nname = "one"\n')
        assert done.returncode == 1
        assert "cartridge[0].command: missing; every [[cartridge]] needs it" in done.stderr.decode()
        done = say(mine.replace("NAME", "two"))
        assert re.fullmatch(rf"port {port}: 1 retired \(one\), {kept}", done.stdout.decode())
        shown = capdag(tmp_path / "run", "ps").stdout.decode()
        assert re.search(r"^  two +running ", shown, re.MULTILINE)
        eventually(lambda: b"  one " not in capdag(tmp_path / "run", "ps").stdout, 20, "it has gone")


def test_ps_looks_beyond_its_folder_for_a_port(shared: Server, tmp_path: Path) -> None:
    port = shared.url.rpartition(":")[2]
    done = capdag(tmp_path, "ps", "--port", port)
    assert done.returncode == 1
    assert f"with its socket in {tmp_path}/capdag (chosen by XDG_RUNTIME_DIR)" in done.stderr.decode()
    assert f"but something listens on port {port}: if that is a capdag, ask with the XDG_RUNTIME_DIR" in (
        done.stderr.decode()
    )


def test_a_reset_that_no_server_can_do_says_which_said_what(shared: Server) -> None:
    with serving(shared.runtime, "--port", "0", "--models", str(shared.runtime.parent / "models")) as other:
        ports = [server.url.rpartition(":")[2] for server in (shared, other)]
        done = capdag(shared.runtime, "ps", "--reset", "ekko")
    for port in ports:
        assert f"port {port}: there is no cartridge 'ekko'" in done.stderr.decode()


def test_the_admin_socket_serves_models_too_and_the_port_no_admin(shared: Server) -> None:
    admin = shared.wait_for(r"capdag ps reaches it by (\S+)")[1]
    with httpx.Client(transport=httpx.HTTPTransport(uds=admin)) as client:
        assert client.get("http://localhost/v1/models").status_code == 200
        assert client.get("http://localhost/_capdag/ps").status_code == 200
    assert httpx.get(f"{shared.url}/_capdag/ps").status_code == 404


def test_other_machines_are_let_in_only_when_told_so(tmp_path: Path) -> None:
    options = _no_models(tmp_path)
    done = capdag(tmp_path / "run", "serve", *options, "--host", "0.0.0.0")
    assert done.returncode == 2
    assert b"gateway.host = '0.0.0.0' lets other machines use the models" in done.stderr
    with serving(tmp_path / "run", *options, "--host", "0.0.0.0", "--without-keys") as server:
        port = server.url.rpartition(":")[2]
        assert httpx.get(f"http://127.0.0.1:{port}/v1/models").status_code == 200


def test_a_foreign_host_name_is_refused_on_loopback(shared: Server) -> None:
    evil = httpx.get(f"{shared.url}/v1/models", headers={"Host": "evil.example"})
    assert evil.status_code == 403
    crossed = httpx.get(f"{shared.url}/v1/models", headers={"Origin": "https://evil.example"})
    assert crossed.status_code == 200
    assert [name for name in crossed.headers if name.startswith("access-control")] == []


def test_a_cartridge_that_does_not_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('the licence has run out')")
    with serving(tmp_path / "run", *_no_models(tmp_path), "--cartridge", f"{sys.executable} {broken}") as server:
        server.wait_for("cartridge 'broken' exited with status 1 before it was ready")
        server.wait_for("the licence has run out")
        shown = capdag(server.runtime, "ps").stdout.decode()
        assert re.search(r"^  broken +(paused|dead) .*exited with status 1 before it was ready", shown, re.MULTILINE)
        broken.write_bytes(Path(__file__).with_name("upper.py").read_bytes())
        done = capdag(server.runtime, "ps", "--reset", "broken")
        assert done.stdout == b"broken starts again now\n"
        eventually(lambda: b"running" in _row(server, "broken"), 20, "it runs")


def _first_answer(url: str) -> httpx.Response:
    answers: list[httpx.Response] = []

    def answers_come() -> bool:
        with suppress(httpx.ConnectError):
            answers.append(httpx.get(url))
        return bool(answers)

    eventually(answers_come, 20, "it listens")
    return answers[0]


def test_a_silent_cartridge_keeps_nobody_waiting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = (*_no_models(tmp_path), "--port", str(port))
    with serving(tmp_path / "run", *options, "--cartridge", "sleep 1000") as server:
        early = _first_answer(f"http://127.0.0.1:{port}/v1/models")
        assert (early.status_code, early.json()["error"]["code"]) == (503, "starting")
        assert "retry-after" in early.headers
        assert b"starting" in _row(server, "sleep")  # the operator is told already
        assert httpx.get(f"{server.url}/v1/models").status_code == 200
        assert httpx.get(f"{server.url}/v1/models/none").status_code == 503
        server.wait_for(r"waiting for cartridge sleep to say what it can do \(up to 30 s\)")
        assert b"starting" in _row(server, "sleep")
        server.send(signal.SIGINT)
        assert server.ended(10) == 0, server.output


def test_a_server_may_be_started_without_standard_streams(tmp_path: Path) -> None:
    arguments = shlex.join([sys.executable, "-m", "capdag", "serve", *_no_models(tmp_path), "--cartridge", UPPER])
    env = environment(tmp_path / "run")
    with subprocess.Popen(["sh", "-c", f"exec {arguments} <&- >&- 2>&-"], env=env) as process:
        eventually(lambda: b"upper" in capdag(tmp_path / "run", "ps").stdout, 20, "it answers")
        eventually(lambda: b"running" in capdag(tmp_path / "run", "ps").stdout, 20, "its cartridge runs")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def _row(server: Server, name: str) -> bytes:
    (row,) = [line for line in capdag(server.runtime, "ps").stdout.splitlines() if line.split()[0] == name.encode()]
    return row


def test_the_file_is_overridden_by_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "capdag.toml"
    file.write_text(f'[gateway]\nport = 1\n[[cartridge]]\nname = "mine"\ncommand = {json.dumps(shlex.split(UPPER))}\n')
    with serving(tmp_path / "run", "--config", str(file), *_no_models(tmp_path)) as server:
        assert not server.url.endswith(":1")
        assert f"cartridge mine: {UPPER}" in server.output


def test_a_wrong_file_is_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "capdag.toml"
    file.write_text("[gatway]\nport = 1\n")
    done = capdag(tmp_path / "run", "serve", "--config", str(file))
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == f"Error: {file}: gatway: unknown key; did you mean gateway?\n"
