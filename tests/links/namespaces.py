"""A gateway and two hosts in three network namespaces: `python -m tests.links.namespaces [--silence SECONDS]`.

One host is cut off in mid-stream, without either side being told, and comes back; then the other one is frozen. Prints
what the clients saw and when, and ends with status 1 if anything was not as it must be. Needs the right to make
network namespaces (root, and `ip` of iproute2); where it is missing this says so and ends with status 77.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Thread

import httpx

GATEWAY, HOSTS = "capdag-gateway", {"alpha": "10.77.0.2", "beta": "10.77.0.3"}
SKIPPED = 77
TOKEN = "open-sesame-open-sesame"


class NotAllowedError(Exception):
    """Namespaces cannot be made here."""


def ip(*words: str) -> None:
    """Run `ip`."""
    try:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise NotAllowedError("there is no `ip` command (iproute2)") from None
    except subprocess.CalledProcessError as error:
        raise NotAllowedError(f"ip {' '.join(words)}: {error.stderr.strip()}") from None


@contextmanager
def network() -> Iterator[None]:
    """Make the namespaces, joined by a bridge in the gateway's."""
    names = [GATEWAY, *(f"capdag-{host}" for host in HOSTS)]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", GATEWAY, "link", "add", "bridge", "type", "bridge")
        ip("-n", GATEWAY, "addr", "add", "10.77.0.1/24", "dev", "bridge")
        ip("-n", GATEWAY, "link", "set", "bridge", "up")
        for host, address in HOSTS.items():
            there = f"capdag-{host}"
            ip("link", "add", host, "netns", GATEWAY, "type", "veth", "peer", "name", "eth", "netns", there)
            ip("-n", GATEWAY, "link", "set", host, "master", "bridge", "up")
            ip("-n", there, "addr", "add", f"{address}/24", "dev", "eth")
            ip("-n", there, "link", "set", "eth", "up")
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def cut(host: str) -> None:
    """Take a host off the bridge: no side sees more than that nothing comes any more."""
    ip("-n", GATEWAY, "link", "set", host, "nomaster")


def mend(host: str) -> None:
    """Put it back."""
    ip("-n", GATEWAY, "link", "set", host, "master", "bridge")


class Process:
    """One `capdag` in a namespace."""

    def __init__(self, namespace: str, folder: Path, *words: str, **environment: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), **environment}
        self.log = (folder / "log").open("wb")
        command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "capdag", *words]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=self.environment
        )

    def ps(self) -> dict[str, dict[str, object]]:
        """Return what `capdag ps --json` says of it."""
        done = subprocess.run(
            [sys.executable, "-m", "capdag", "ps", "--json"], env=self.environment, capture_output=True, timeout=20
        )
        found: dict[str, dict[str, object]] = json.loads(done.stdout or b"{}")
        return found

    def pids(self) -> list[int]:
        """Return the processes of its cartridges, sorted."""
        hosts = [answer.get("host", {}) for answer in self.ps().values()]
        found = [cartridge["pid"] for host in hosts for cartridge in host.get("cartridges", [])]  # type: ignore[attr-defined]
        return sorted(pid for pid in found if pid)

    def end(self) -> int:
        """End it in order; return its exit code."""
        self.process.terminate()
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.log.close()


class Stream(Thread):
    """A client that reads an answer without end: when each piece came, and how it ended."""

    def __init__(self, url: str, model: str) -> None:
        super().__init__(daemon=True)
        self.times: list[float] = []
        self.error = ""
        self.ended_at = 0.0
        self._url, self._model = url, model
        self.start()

    def run(self) -> None:
        body = {**chat(self._model, "for ever"), "stream": True}
        try:
            with httpx.stream("POST", f"{self._url}/v1/chat/completions", json=body, timeout=120) as reply:
                for line in reply.iter_lines():
                    if '"error"' in line:
                        self.error = json.loads(line.removeprefix("data: "))["error"]["code"]
                        break
                    if '"content"' in line:
                        self.times.append(time.monotonic())
        except httpx.HTTPError as error:
            self.error = repr(error)
        self.ended_at = time.monotonic()

    def widest_gap(self, since: float) -> float:
        """Return the longest time without a piece since a moment."""
        times = [since, *(at for at in self.times if at > since), time.monotonic()]
        return max(later - earlier for earlier, later in pairwise(times))


def chat(model: str, text: str) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": text}]}


def ask(url: str, model: str) -> str:
    """Send a short request and return the answer, or what went wrong."""
    reply = httpx.post(f"{url}/v1/chat/completions", json=chat(model, "hello"), timeout=120)
    return reply.json()["choices"][0]["message"]["content"] if reply.status_code == 200 else reply.text


def models(url: str) -> set[str]:
    return {model["id"] for model in httpx.get(f"{url}/v1/models", timeout=20).json()["data"]}


class Story:
    """What happens, told as it does."""

    def __init__(self, silence: float) -> None:
        self.silence = silence
        self.faults = 0

    def tell(self, what: str, seconds: float, most: float | None = None) -> None:
        """Print a figure; over `most` it is a fault."""
        bad = most is not None and seconds > most
        self.faults += bad
        bound = "" if most is None else f"  (at most {most:.1f} s){'  FAULT' if bad else ''}"
        print(f"{what:<74} {seconds:6.2f} s{bound}", flush=True)

    def check(self, what: str, holds: bool) -> None:
        """Print whether something holds that must."""
        self.faults += not holds
        print(f"{what:<74} {'yes' if holds else 'NO  FAULT'}", flush=True)

    def wait(self, what: str, ready: Callable[[], bool], most: float) -> None:
        """Wait until something holds, and tell how long it took."""
        began = time.monotonic()
        while not ready() and time.monotonic() < began + most:
            time.sleep(0.02)
        self.tell(what, time.monotonic() - began, most)

    def run(self, url: str, hosts: dict[str, Process]) -> None:
        """Cut alpha off and mend it; freeze beta and thaw it."""
        self.wait("both hosts are attached and their models listed", lambda: models(url) == set(HOSTS), 20)
        streams = {name: Stream(url, name) for name in HOSTS}
        time.sleep(2)
        warm = hosts["alpha"].pids()
        self._cut_off(url, streams)
        self.check("alpha's cartridges are the same processes as before", hosts["alpha"].pids() == warm)
        self._freeze(url, hosts["beta"], streams["beta"])

    def _cut_off(self, url: str, streams: dict[str, Stream]) -> None:
        began = time.monotonic()
        cut("alpha")
        streams["alpha"].join(60)
        self.tell("alpha is cut off: its client hears of it", time.monotonic() - began, 1.5 * self.silence + 1)
        self.check("... as master_died", streams["alpha"].error == "master_died")
        self.wait("... and its model is not listed", lambda: models(url) == {"beta"}, 5)
        with ThreadPoolExecutor(1) as aside:
            meanwhile = aside.submit(ask, url, "alpha")
            time.sleep(3)
            self.check("a request for it meanwhile waits", not meanwhile.done())
            mend("alpha")
        self.check("... and is answered when alpha is back", meanwhile.result() == "hello")
        self.wait("alpha is back: its model is listed again", lambda: models(url) == set(HOSTS), 15)
        self.check("... and answers", ask(url, "alpha") == "hello")
        self.tell("beta's stream all the while: longest gap between two pieces", streams["beta"].widest_gap(began), 0.5)
        self.check("... and it has not ended", streams["beta"].is_alive())

    def _freeze(self, url: str, host: Process, stream: Stream) -> None:
        began = time.monotonic()
        host.process.send_signal(signal.SIGSTOP)
        stream.join(60)
        self.tell("beta is frozen: its client hears of it", time.monotonic() - began, 1.5 * self.silence + 1)
        self.check("... as master_died", stream.error == "master_died")
        host.process.send_signal(signal.SIGCONT)
        thawed = time.monotonic()
        self.wait("beta is thawed: its model is listed again", lambda: "beta" in models(url), 25)
        self.check("... and answers", ask(url, "beta") == "hello")
        self.tell("... in all after", time.monotonic() - thawed)


def inside(folder: Path, silence: float) -> int:
    """Run the story; this process is in the gateway's namespace."""
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    links = f'token_file = "{folder}/token"\nsilence = {silence}\n'
    (folder / "host.toml").write_text(f"[host.links]\n{links}")
    (folder / "gateway.toml").write_text(f"[gateway.links]\n{links}")
    (folder / "models").mkdir()
    hosts = {}
    for name, address in HOSTS.items():
        words = ["host", "--listen", f"tcp:{address}:7070", "--config", str(folder / "host.toml")]
        words += ["--models", str(folder / "models")]
        words += ["--cartridge", f"{sys.executable} -m capdag.cartridge tests.links.ticker"]
        hosts[name] = Process(f"capdag-{name}", folder / name, *words, TICKER=name)
    reach = ",".join(f"tcp:{address}:7070" for address in HOSTS.values())
    words = ["gateway", "--hosts", reach, "--config", str(folder / "gateway.toml"), "--port", "8080"]
    gateway = Process(GATEWAY, folder / "gateway", *words)
    story = Story(silence)
    url = "http://127.0.0.1:8080"
    try:
        story.wait("the gateway serves", lambda: _answers(url), 20)
        story.run(url, hosts)
    finally:
        for name, process in {"gateway": gateway, **hosts}.items():
            story.check(f"{name} ends in order", process.end() == 0)
            log = (process.folder / "log").read_text()
            story.check("... without a traceback", "Traceback" not in log)
            if story.faults:
                print(log)
    return 1 if story.faults else 0


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/models", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def main() -> int:
    """Make the network, and tell the story from inside."""
    parser = argparse.ArgumentParser(prog="python -m tests.links.namespaces", description=__doc__)
    parser.add_argument("--silence", type=float, default=5.0, help="the setting of both sides, in seconds")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside is not None:
        return inside(arguments.inside, arguments.silence)
    try:
        with network(), tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "tests.links.namespaces", "--inside", folder]
            words += ["--silence", str(arguments.silence)]
            return subprocess.run(["ip", "netns", "exec", GATEWAY, *words]).returncode
    except NotAllowedError as error:
        print(f"not run: network namespaces cannot be made here ({error}); it needs root and iproute2")
        return SKIPPED


if __name__ == "__main__":
    sys.exit(main())
