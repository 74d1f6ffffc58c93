"""`capdag host` and `capdag gateway` over links between machines: encrypted, with certificates and a token."""

from __future__ import annotations

import re
import signal
import socket
import sys
from pathlib import Path

import httpx

from tests.cli.servers import Server, capdag, eventually, serving
from tests.links.kinds import Certificates, certificates

SPELLER = f"{sys.executable} -m capdag.cartridge tests.gateway.speller"


def _token(tmp_path: Path) -> str:
    file = tmp_path / "token"
    file.write_text("open-sesame-open-sesame\n")
    file.chmod(0o600)
    return str(file)


def _tls(files: Certificates, who: str) -> tuple[str, ...]:
    certificate, key = getattr(files, who)
    return "--tls-cert", str(certificate), "--tls-key", str(key), "--tls-ca", str(files.ca)


def _ask(url: str) -> str:
    body = {"model": "speller", "messages": [{"role": "user", "content": "hello"}]}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20)
    return reply.json()["choices"][0]["message"]["content"] if reply.status_code == 200 else reply.text


def _models(url: str) -> list[str]:
    return [model["id"] for model in httpx.get(f"{url}/v1/models", timeout=20).json()["data"]]


def _pid(server: Server) -> int:
    """Return the process of the cartridge of a host."""
    return int(server.find("tests.gateway.speller").pid)


def _host_arguments(tmp_path: Path) -> tuple[str, ...]:
    return "--models", str(tmp_path), "--cartridge", SPELLER


def test_a_host_outlives_its_gateway_and_keeps_its_cartridges_warm(tmp_path: Path) -> None:
    """K20: By TLS with certificates on both sides; the models follow the host, and ps shows how it stands."""
    files = certificates()
    run = tmp_path / "run"
    listen = ("--listen", "tls:127.0.0.1:0", *_tls(files, "server"))
    with serving(run, *listen, *_host_arguments(tmp_path), command="host") as host:
        address = host.wait_for(r"links are taken at (tls:127\.0\.0\.1:\d+)$")[1]
        reach = ("--hosts", address, *_tls(files, "client"), "--port", "0")
        with serving(run, *reach, command="gateway") as gateway:
            assert _ask(gateway.url) == "hello"
            pid = _pid(host)
            gateway.process.kill()
            gateway.ended()
        host.wait_for(r"the engine at \S+ has gone: .*; cartridges are kept warm for 300 s")
        with serving(run, *reach, command="gateway") as gateway:
            assert _models(gateway.url) == ["Speller"]
            assert _ask(gateway.url) == "hello"
            assert _pid(host) == pid
            shown = capdag(run, "ps").stdout.decode()
            assert re.search(rf"^  {address} +ready$", shown, re.MULTILINE), shown
            host.send(signal.SIGTERM)
            assert host.ended() == 0, host.output
            eventually(lambda: _models(gateway.url) == [], 10, "the models of a host that has gone are not listed")
            gateway.send(signal.SIGTERM)
            assert gateway.ended() == 0, gateway.output
            assert "Traceback" not in host.output + gateway.output


def test_hosts_come_in_by_websocket_and_strangers_do_not(tmp_path: Path) -> None:
    """A server accepts, by wss with a token. A host that is killed and started again is another, and serves."""
    files, token = certificates(), _token(tmp_path)
    run = tmp_path / "run"
    certificate, key = files.server
    (tmp_path / "capdag.toml").write_text(
        f'[gateway.links]\naccept = ["wss://127.0.0.1:0/hosts"]\n'
        f'tls_cert = "{certificate}"\ntls_key = "{key}"\ntoken_file = "{token}"\n'
    )
    with serving(run, "--config", str(tmp_path / "capdag.toml"), "--models", str(tmp_path), "--port", "0") as gateway:
        address = gateway.wait_for(r"links are taken at (wss://127\.0\.0\.1:\d+/hosts)$")[1]
        assert gateway.url
        come = ("--connect", address, "--tls-ca", str(files.ca), "--token-file", token)
        for _ in range(2):
            with serving(run, *come, *_host_arguments(tmp_path), command="host") as host:
                eventually(lambda: _models(gateway.url) == ["Speller"], 20, "the host is attached")
                assert _ask(gateway.url) == "hello"
                host.process.kill()
                host.ended()
            eventually(lambda: _models(gateway.url) == [], 10, "the host has gone")
        port = int(re.findall(r":(\d+)/", address)[0])
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET /hosts HTTP/1.1\r\n\r\n")
            stranger.settimeout(10)
            stranger.recv(1000)
        gateway.wait_for("was turned away: the opening handshake failed")
        shown = capdag(run, "ps").stdout.decode()
        assert re.search(r"listening +1 connections turned away", shown), shown
        gateway.send(signal.SIGTERM)
        assert gateway.ended() == 0, gateway.output
        assert "Traceback" not in gateway.output
