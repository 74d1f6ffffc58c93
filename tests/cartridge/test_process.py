"""The cartridge as a process: whose descriptors are whose, how it ends, and what it is when a person starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from capdag.wire import FrameType, body_end_frame, decode_value
from cartridges.echo import ECHO, SLOW_ECHO, SPEC
from tests.cartridge import stub_caps as stub
from tests.cartridge.driver import ECHO_COMMAND, ROOT, STUB_COMMAND, cartridge, req, start, whole_request


def test_what_is_printed_lands_on_stderr() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.PRINT), body_end_frame(1))
        assert driver.terminal(1).type is FrameType.END
        assert driver.close() == 0
        assert driver.stderr().splitlines() == [
            "C says hello while it is imported",
            "Python says hello while it is imported",
            "C says hello in a handler",
            "Python says hello in a handler",
        ]


def test_started_directly_it_takes_the_descriptors_in_run() -> None:
    with cartridge(
        (sys.executable, "-c", "from cartridges.echo.main import cartridge as c; print(flush=True); c.run()")
    ) as driver:
        # What was printed before run() did reach the host. That is what the launcher is for.
        assert os.read(driver.stdout, 1) == b"\n"
        driver.attach()
        assert driver.ask(1, ECHO).type is FrameType.END


def test_a_child_of_a_handler_gets_none_of_the_protocol() -> None:
    code = """
import os, subprocess
from capdag.cartridge import Cartridge
c = Cartridge("c", version="1")
@c.cap("cap:child;in=media:void;out=media:text", title="t", aliases=["t"])
def child(request):
    found = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False).stdout
    request.output.write(found)
c.run()
"""
    with cartridge((sys.executable, "-c", code)) as driver:
        driver.attach()
        driver.send(req(1, "cap:child;in=media:void;out=media:text"), body_end_frame(1))
        driver.terminal(1)
        listing = decode_value(driver.of(1, FrameType.CHUNK)[0].fields[6])
    opened = {line.split(" -> ")[0].split()[-1]: line.split(" -> ")[1] for line in listing.splitlines() if "->" in line}
    assert set(opened) == {"0", "1", "2", "3"}, "3 is the listing's own"
    assert opened["0"] == "/dev/null"
    assert opened["3"].startswith("/proc/")


def test_eof_ends_an_idle_cartridge_at_once() -> None:
    with cartridge() as driver:
        driver.attach()
        assert driver.ask(1, ECHO).type is FrameType.END
        began = time.monotonic()
        assert driver.close() == 0
        assert time.monotonic() - began < 1
        assert driver.stderr() == ""


def test_eof_cancels_what_runs_and_what_waits() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.HOLD), req(2, stub.HOLD), req(3, stub.READ), start(3, "media:octets"))
        running = {driver.next(lambda view: view.meta.get("level") == "info").id for _ in range(2)}
        assert running == {1, 3}
        driver.process.stdin.close()
        ends = [driver.next(lambda view: view.type is FrameType.ERR).meta for _ in range(3)]
        assert {(meta["code"], meta["attribution_class"]) for meta in ends} == {("ABORTED", "environment")}
        assert driver.exit_code() == 0


def test_eof_waits_two_seconds_for_handlers_and_no_longer() -> None:
    code = """
import time
from tests.cartridge import stub_caps
from capdag.cartridge import Cartridge
c = Cartridge("c", version="1")
@c.cap(stub_caps.HOLD, title="t", aliases=["t"])
def hold(request):
    request.log("info", "deaf")
    time.sleep(60)
c.run()
"""
    with cartridge((sys.executable, "-c", code)) as driver:
        driver.attach()
        driver.send(req(1, stub.HOLD))
        driver.logged(1, "deaf")
        began = time.monotonic()
        assert driver.close() == 0
        assert 1.5 < time.monotonic() - began < 4


def test_it_ends_when_only_its_output_is_closed() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.HOLD))
        driver.logged(1, "holding")
        driver.process.stdout.close()
        assert driver.exit_code() == 0


def test_it_ends_when_the_host_dies_without_reading() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        for rid in range(1, 4):
            driver.send(req(rid, stub.FLOOD))
        time.sleep(0.2)
        driver.process.stdout.close()
        driver.process.stdin.close()
        assert driver.exit_code() == 0


def test_sigterm_ends_it_at_once() -> None:
    with cartridge() as driver:
        driver.attach()
        driver.send(*whole_request(1, SLOW_ECHO, "media:octets", b"a" * 100))
        driver.next(lambda view: view.type is FrameType.CHUNK)
        driver.process.send_signal(signal.SIGTERM)
        assert driver.exit_code() == -signal.SIGTERM


def command(*arguments: str, module: str = "cartridges.echo.main") -> subprocess.CompletedProcess[str]:
    """Start a cartridge with arguments, as a person does."""
    line = [sys.executable, "-m", "capdag.cartridge", module, *arguments]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)


def test_manifest_prints_json_and_leaves_stdout_alone() -> None:
    done = command("manifest")
    assert (done.returncode, done.stderr) == (0, "")
    manifest = json.loads(done.stdout)
    caps = [cap["urn"] for group in manifest["cap_groups"] for cap in group["caps"]]
    assert caps[:2] == ["cap:effect=none", ECHO]


def test_help_says_what_it_is() -> None:
    done = command("--help")
    assert done.returncode == 0
    assert "echo 0.1.0" in done.stdout
    assert "manifest" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "module", "why"),
    [
        (("serve",), "cartridges.echo.main", "No such command 'serve'; there are: identity, echo"),
        (("manifest", "now"), "cartridges.echo.main", "unexpected extra argument (now)"),
        ((), "cartridges.nothing_here", "No module named cartridges.nothing_here"),
        ((), "cartridges.echo", "'cartridges.echo' is a package"),
        ((), "tests.cartridge.stub_caps", "ended without calling run()"),
    ],
)
def test_what_cannot_be_run_says_why(arguments: tuple[str, ...], module: str, why: str) -> None:
    done = command(*arguments, module=module)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr
    assert "Traceback" not in done.stderr


def test_the_launcher_needs_a_module() -> None:
    line = [sys.executable, "-m", "capdag.cartridge"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: python -m capdag.cartridge MODULE" in done.stderr


def test_a_terminal_on_stdin_is_no_host() -> None:
    master, terminal = os.openpty()
    try:
        done = subprocess.run(list(ECHO_COMMAND), cwd=ROOT, capture_output=True, text=True, timeout=30, stdin=terminal)
    finally:
        os.close(master)
        os.close(terminal)
    assert (done.returncode, done.stdout) == (2, "")
    assert "stdin is a terminal" in done.stderr


def test_an_error_inside_the_authors_module_keeps_its_traceback() -> None:
    done = command(module="tests.cartridge.broken_stub")
    assert done.returncode == 1
    assert "No module named 'an_engine_that_is_not_installed'" in done.stderr
    assert "broken_stub.py" in done.stderr


def test_importing_the_sdk_does_nothing_and_brings_no_event_loop() -> None:
    code = (
        "import os, sys; before = os.listdir('/proc/self/fd'); import capdag.cartridge, cartridges.echo.main;"
        "assert os.listdir('/proc/self/fd') == before;"
        "print(sorted({'trio', 'asyncio', 'click', 'msgspec', 'logging', 'dataclasses', 'inspect'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_spec_starts_it() -> None:
    (record,) = SPEC.records(ROOT, lambda _: {})
    with cartridge(SPEC.command) as driver:
        pools = driver.attach().pools
        served = {cap["urn"] for cap in record.caps}
        assert len(served) == len(set(pools) - {"all", "cap:effect=none"})
        assert driver.ask(1, ECHO).type is FrameType.END
