"""One call through a host in this process: arguments in, progress on stderr, the answer on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial

import trio

from capdag.cartridge.terminal import AnswerPrinter, Sidelines
from capdag.client import Client, Logged, Value
from capdag.config import Config
from capdag.relay import Switch, open_switch
from capdag.wire import IDENTITY_CAP

from ._arguments import NotServedError, find_capability, read_arguments
from ._failure import FAILED, CallEndedError, UnreadError, ended_by
from ._learn import failures, learn_caps
from ._local import start_local_host
from ._roster import Roster, read_roster
from ._run import open_run
from ._settings import checked_models_folder, switch_settings
from ._signals import run_until_signal

CANCEL_LIMIT = 5.0
"""Seconds between Ctrl-C and the end of what has not heard it."""


def run_call(config: Config, commands: Sequence[str], cap: str, words: Sequence[str], *, as_json: bool) -> None:
    """Call `cap` and print its answer. Raises CapdagErrors, RequestFailedError among them, alone or in a group."""
    roster = read_roster(config, checked_models_folder(config), commands)
    number = trio.run(run_until_signal, partial(_run, config, roster, cap, words, as_json), CANCEL_LIMIT)
    if number is not None:
        raise CallEndedError("interrupted; the call was cancelled", ended_by(number))


async def _run(config: Config, roster: Roster, cap: str, words: Sequence[str], as_json: bool, stop: trio.Event) -> None:
    async with open_run() as run, open_switch(switch_settings(config)) as switch, trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_after, stop, nursery.cancel_scope)
        host = await start_local_host(nursery, switch, roster, run, config)
        await switch.wait_for(IDENTITY_CAP)
        await learn_caps(host, roster.records)
        try:
            await _call(switch, cap, words, as_json)
        except NotServedError as error:
            raise NotServedError("\n".join([str(error), *failures(host), *roster.notices])) from None
        finally:
            await host.shutdown()
        nursery.cancel_scope.cancel()


async def _cancel_after(stop: trio.Event, scope: trio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()


async def _call(switch: Switch, cap: str, words: Sequence[str], as_json: bool) -> None:
    capability = find_capability(cap, switch.capabilities())
    arguments = read_arguments(words, capability)
    sidelines = Sidelines(sys.stderr)
    printer = AnswerPrinter(on_terminal=bool(sys.stdout) and sys.stdout.isatty(), as_json=as_json)
    asked = cap if cap.startswith("cap:") else capability.text
    try:
        async with Client(switch).call(asked, arguments) as call:
            async for batch in call.batches():
                for event in batch:
                    if isinstance(event, Logged):
                        sidelines.show(event.record)
                sys.stderr.flush()
                values = [event for event in batch if isinstance(event, Value)]
                data = b"".join(printer.show(*value) for value in values)
                if data:
                    sidelines.clear()
                    # In a thread: a reader of the pipe who takes his time must not stop the heartbeats.
                    await trio.to_thread.run_sync(_write, data, abandon_on_cancel=True)
        if rest := printer.end():
            _write(rest)
    finally:
        sidelines.end()


def _write(data: bytes) -> None:
    """Write past Python's buffer, which would complain once more at exit. Raises UnreadError if nobody reads it, and
    CallEndedError if it cannot be written."""
    if not sys.stdout:  # None in a process that was started without
        raise CallEndedError("stdout is closed, so the answer has nowhere to go: redirect it to a file", FAILED)
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(sys.stdout.fileno(), rest) :]
    except BrokenPipeError:
        raise UnreadError("nobody reads the answer any more") from None
    except OSError as error:
        raise CallEndedError(f"cannot write the answer to stdout: {error.strerror}", FAILED) from None
