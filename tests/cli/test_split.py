"""`capdag serve --split`, and its halves on their own."""

from __future__ import annotations

import re
import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests.cli.servers import Server, capdag, eventually, serving
from tests.leaks import alive


def _options(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "models").mkdir(exist_ok=True)
    return "--port", "0", "--models", str(tmp_path / "models"), "--split"


def _attached(server: Server) -> bool:
    shown = _shown(server)
    return any(line.split()[0] == "echo" for title, rows in shown.items() if title.startswith("port ") for line in rows)


def _shown(server: Server) -> dict[str, list[str]]:
    """Return the rows of `capdag ps`, by the server they stand under."""
    shown = capdag(server.runtime, "ps").stdout.decode()
    sections = re.findall(r"^(\S.*)\n((?:  .*\n)*)", shown, re.MULTILINE)
    return {title: rows.splitlines() for title, rows in sections}


def test_two_processes_serve_as_one_does_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "run", *_options(tmp_path)) as server:
        assert httpx.get(f"{server.url}/v1/models").status_code == 200
        assert server.find("capdag host").pid != server.find("capdag gateway").pid
        assert _attached(server)
        ((title, rows),) = _shown(server).items()
        assert title == f"port {server.url.rpartition(':')[2]}"
        (echo,) = [row for row in rows if "echo" in row]
        assert echo.split()[:2] == ["echo", "registered"]
        port = title.removeprefix("port ")
        assert capdag(server.runtime, "ps", "--port", port).stdout.decode().splitlines()[0] == title
        done = capdag(server.runtime, "ps", "--port", port, "--reset", "ekko")
        assert f"Error: {title}: there is no cartridge 'ekko'; the cartridges are: echo" in done.stderr.decode()
        assert capdag(server.runtime, "ps", "--reset", "echo").returncode == 0
        server.send(signal.SIGINT)
        assert server.ended(10) == 0, server.output
        assert list(server.folder.iterdir()) == []
        assert "ERROR" not in server.output
        assert "Traceback" not in server.output


@pytest.mark.parametrize("half", ["host", "gateway"])
def test_a_killed_half_is_started_again(tmp_path: Path, half: str) -> None:
    with serving(tmp_path / "run", *_options(tmp_path)) as server:
        assert server.url
        server.find(f"capdag {half}").kill()
        server.wait_for(f"capdag {half} was ended by SIGKILL; it is started again")
        eventually(lambda: _attached(server), 20, "the halves have found each other again")
        server.send(signal.SIGINT)
        assert server.ended(10) == 0, server.output
        assert list(server.folder.iterdir()) == []


def test_a_killed_parent_takes_both_halves_with_it(tmp_path: Path) -> None:
    with serving(tmp_path / "run", *_options(tmp_path)) as server:
        assert server.url
        started = [process.pid for process in server.descendants()]
        assert len(started) >= 5  # two halves and three guardians
        server.process.kill()
        eventually(lambda: not any(map(alive, started)), 5, "its processes are gone")
        eventually(lambda: list(server.folder.iterdir()) == [], 5, "its sockets and run files are gone")


def test_a_half_that_cannot_start_ends_the_server_with_its_exit_code(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = capdag(tmp_path / "run", "serve", *_options(tmp_path), "--port", str(port))
    assert done.returncode == 3
    assert f"port {port} of 127.0.0.1 is in use".encode() in done.stderr
    assert list((tmp_path / "run" / "capdag").iterdir()) == []


def test_a_host_may_connect_to_a_gateway_that_listens(tmp_path: Path) -> None:
    meeting = f"unix:{tmp_path / 'engine.sock'}"
    with (
        serving(tmp_path / "run", "--accept", meeting, "--port", "0", command="gateway") as gateway,
        serving(tmp_path / "run", "--connect", meeting, "--models", str(tmp_path), command="host") as host,
    ):
        assert gateway.url
        eventually(lambda: _attached(gateway), 20, "the host is attached")
        for server in (host, gateway):
            server.send(signal.SIGTERM)
            assert server.ended(10) == 0, server.output
    assert list(gateway.folder.iterdir()) == []
    assert not (tmp_path / "engine.sock").exists()


def test_a_gateway_that_waits_for_its_hosts_ends_at_once_when_it_is_told_to(tmp_path: Path) -> None:
    """Until then it answers, but that it is starting."""
    with serving(tmp_path / "run", "--hosts", f"unix:{tmp_path}/a.sock", "--port", "0", command="gateway") as gateway:
        eventually(lambda: list(gateway.folder.glob("*.sock")) != [], 20, "the admin socket is there")
        gateway.send(signal.SIGINT)
        assert gateway.ended() == 0, gateway.output
    assert "serving at" not in gateway.output


def test_a_gateway_whose_port_is_taken_leaves_its_hosts_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket(socket.AF_UNIX) as host:
        host.bind(path)
        host.listen()
        done = capdag(tmp_path / "run", "gateway", "--hosts", f"unix:{path}", "--port", str(taken.getsockname()[1]))
        host.setblocking(False)
        with pytest.raises(BlockingIOError):
            host.accept()
    assert done.returncode == 3, done.stderr


@pytest.mark.parametrize("command", ["host", "gateway"])
def test_an_address_in_use_is_exit_code_3(tmp_path: Path, command: str) -> None:
    """As a port of HTTP is."""
    way = ("--listen",) if command == "host" else ("--port", "0", "--accept")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp:127.0.0.1:{taken.getsockname()[1]}"
        done = capdag(tmp_path / "run", command, *way, address)
    assert done.returncode == 3, done.stderr
    assert f"Error: cannot listen at {address}: port".encode() in done.stderr


def test_a_second_engine_is_turned_away(tmp_path: Path) -> None:
    path = tmp_path / "host.sock"
    with serving(tmp_path / "run", "--listen", f"unix:{path}", "--models", str(tmp_path), command="host") as host:
        eventually(path.exists, 20, "the host listens")
        with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
            first.connect(str(path))
            assert first.recv(1) != b""  # its RELAY_NOTIFY
            second.connect(str(path))
            second.settimeout(10)
            assert second.recv(1) == b""
            with socket.socket(socket.AF_UNIX) as third:
                third.connect(str(path))
                third.settimeout(10)
                assert third.recv(1) == b""
        host.wait_for("turned away")
        host.send(signal.SIGINT)
        assert host.ended(10) == 0, host.output
    assert host.output.count("is turned away: that at") == 1
    assert "an engine is attached" not in host.output  # none has said a word


@pytest.mark.parametrize("arguments", [["host", "--listen"], ["gateway", "--port", "0", "--accept"]])
def test_a_socket_that_cannot_be_bound_is_named(tmp_path: Path, arguments: list[str]) -> None:
    done = capdag(tmp_path / "run", *arguments, f"unix:{tmp_path}/none/a.sock")
    assert done.returncode == 1
    assert f"Error: cannot listen on {tmp_path}/none/a.sock: No such file or directory" in done.stderr.decode()
    assert b"Traceback" not in done.stderr
