"""`capdag check`: hold any cartridge to the protocol."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ._failure import FAILED, EndedError, ended_by, expected_error
from ._options import log_option, log_to_stderr

if TYPE_CHECKING:
    import trio

    from capdag.conformance import Case, Report, Settings

NOT_STARTED = 3
"""Exit code where there is no such program."""

_CANCEL_LIMIT = 10.0
"""Seconds between Ctrl-C and the end of what has not heard it."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--only", multiple=True, metavar="CASE", help="Try this case alone. May be repeated.")
@click.option("--skip", multiple=True, metavar="CASE", help="Leave this case out. May be repeated.")
@click.option("--list", "listed", is_flag=True, help="Show the cases and what they ask, and stop.")
@click.option("--cap", metavar="CAP", help="The cap to work with: a URN of the manifest, or an alias.")
@click.option("--input", "given", metavar="VALUE", help="What CAP is given: - for stdin, @FILE for a file, or text.")
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=10.0, show_default=True, metavar="SECONDS",
    help="How long the cartridge may take for each frame that it owes.",
)  # fmt: skip
@click.option(
    "--start-timeout", type=click.FloatRange(min=0.1), default=30.0, show_default=True, metavar="SECONDS",
    help="How long it may take from its start to its HELLO.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write the report as JUnit XML, too.")
@log_option("error")
@click.argument("command", nargs=-1)
@click.pass_context
def check(
    ctx: click.Context,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    listed: bool,
    cap: str | None,
    given: str | None,
    timeout: float,
    start_timeout: float,
    as_json: bool,
    junit: Path | None,
    log_level: str,
    command: tuple[str, ...],
) -> None:
    """Run a cartridge through the protocol and say what is right and wrong.

    COMMAND is what a host would start, with its arguments; CAPDAG_CONFIG is passed on to it. Each case names the law
    of protocol-spec that it is about. A case that the cartridge has nothing to be tried with is skipped, and says why.
    A call that the cartridge makes of another cap is answered with what it is given, as by an echo.
    Exit code 0 if no case failed, 1 if one did, 3 if the command cannot be started.

    \b
    Examples:
      capdag check node echo.js
      capdag check --only cancel-idle --only cancel-blocked ./mine
      capdag check --cap chat --input @request.json python3 -m capdag.cartridge mychat
      capdag check --json ./mine > report.json
    """
    from capdag.conformance import Settings, as_junit, choose_cases

    cases = choose_cases(only, skip)
    if listed:
        width = max(len(case.id) for case in cases)
        click.echo("\n".join(f"{case.id:{width}}  {case.title}  [{case.law}]" for case in cases))
        return
    if not command:
        raise click.UsageError("say what starts the cartridge: capdag check COMMAND [ARGS...]")
    log_to_stderr(log_level)
    data = None if given is None else _read(given)
    settings = Settings(cap=cap, input=data, timeout=timeout, start_timeout=start_timeout)
    report = _run(command, settings, cases)
    if junit is not None:
        _write(junit, as_junit(report))
    _show(report, as_json)
    ctx.exit(0 if report.passed else FAILED)


def _read(given: str) -> bytes:
    if given != "-" and not given.startswith("@"):
        return given.encode()
    try:
        return sys.stdin.buffer.read() if given == "-" else Path(given[1:]).read_bytes()
    except OSError as error:
        raise click.BadParameter(
            f"cannot read {given.removeprefix('@')}: {error.strerror}", param_hint="--input"
        ) from None


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        raise click.BadParameter(f"cannot write {file}: {error.strerror}", param_hint="--junit") from None


def _show(report: Report, as_json: bool) -> None:
    from capdag.conformance import as_json as render_json
    from capdag.conformance import as_text

    click.echo(render_json(report) if as_json else as_text(report, colour=sys.stdout.isatty()), nl=False)


def _run(command: tuple[str, ...], settings: Settings, cases: list[Case]) -> Report:
    import trio

    from capdag.transport import SpawnError

    from ._signals import run_until_signal

    reports: list[Report] = []
    try:
        number = trio.run(run_until_signal, partial(_check, command, settings, cases, reports), _CANCEL_LIMIT)
    except (SpawnError, BaseExceptionGroup) as error:
        expected = expected_error(error)
        if isinstance(expected, SpawnError):
            raise EndedError(str(expected), NOT_STARTED) from None
        raise
    finally:
        _say("")
    if number is not None:
        raise EndedError("interrupted; the cartridge was ended", ended_by(number))
    return reports[0]


async def _check(
    command: tuple[str, ...], settings: Settings, cases: list[Case], reports: list[Report], stop: trio.Event
) -> None:
    import trio

    from capdag.conformance import run_command

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_after, stop, scope)
            reports.append(await run_command(command, settings, cases, partial(_tell, cases[0], settings)))
            nursery.cancel_scope.cancel()


async def _cancel_after(stop: trio.Event, scope: trio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()


def _tell(first: Case, settings: Settings, case: Case) -> None:
    """Show which case is being tried; the first has to wait for the cartridge's start."""
    waits = f" (HELLO may take {settings.start_timeout:g} s)" if case is first else ""
    _say(f"{case.id}{waits}")


def _say(text: str) -> None:
    """Show on a terminal what is being done."""
    if sys.stderr and sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
