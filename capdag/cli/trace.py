"""`capdag trace`: record a cartridge's frames, show them, replay them."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._failure import FAILED, INTERRUPTED, EndedError
from ._options import log_option, log_to_stderr
from ._saying import say

if TYPE_CHECKING:
    from capdag.trace import Replay, Trace
    from capdag.wire import FrameType, MessageId


@click.group()
def trace() -> None:
    """Record the frames of a cartridge, show them, and replay them.

    A trace is a file of JSON lines. Contents are masked unless --payloads is given: sizes, order and timing stay.

    \b
    Examples:
      capdag serve --trace traces                            every start of every cartridge, a file each
      capdag serve --cartridge 'capdag trace record run.trace -- python3 mine.py'
      capdag trace show run.trace                            every frame, then the requests
      capdag trace show run.trace --request 3f2a             one request and the calls made for it
      capdag trace replay run.trace -- python3 mine.py       does it fail here as it failed there?
    """


@trace.command(context_settings={"ignore_unknown_options": True})
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--payloads", is_flag=True, help="Keep contents. Needed for a replay that depends on them.")
@click.argument("command", nargs=-1, required=True)
def record(file: Path, payloads: bool, command: tuple[str, ...]) -> None:
    """Run a cartridge and write its frames to FILE.

    Put this in front of the command that starts the cartridge, wherever that is given to a host. Everything passes
    unchanged, and the exit code or signal is the cartridge's own. A file that is there is left alone: the next start
    writes FILE-2, and so on.
    """
    from capdag.trace import recorder

    if sys.stdin.isatty():
        raise click.UsageError(
            "a recorder stands between a host and a cartridge, and stdin is a terminal: give it to a host, as in\n"
            f"  capdag serve --cartridge 'capdag trace record {file} -- {shlex.join(command)}'"
        )
    click.get_current_context().exit(recorder.record(file, command, payloads=payloads))


def _frame_type(_ctx: click.Context, _param: click.Parameter, names: tuple[str, ...]) -> frozenset[FrameType] | None:
    from capdag.wire import FrameType

    known = {kind.name.lower(): kind for kind in FrameType}
    for name in names:
        if name.lower() not in known:
            raise click.BadParameter(f"{name!r} is no frame type; there are {', '.join(sorted(known))}")
    return frozenset(known[name.lower()] for name in names) or None


@trace.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--request", "request", metavar="RID", help="Only this request (the beginning of its RID) and its calls.")
@click.option("--type", "types", multiple=True, metavar="TYPE", callback=_frame_type, help="Only frames of this type.")
@click.option("--previews", is_flag=True, help="Show the beginning of each payload.")
@click.option("--requests", "only_requests", is_flag=True, help="Only the list of requests.")
def show(
    file: Path, request: str | None, types: frozenset[FrameType] | None, previews: bool, only_requests: bool
) -> None:
    """Show a trace: a line for each frame (→ goes to the cartridge), then a line for each request."""
    from capdag.trace import list_records, list_requests, requests_of

    read = _read(file)
    rids = None if request is None else _matching(read, request)
    if not only_requests:
        kept = "contents kept" if read.head.payloads else "contents masked"
        say(f"{shlex.join(read.head.command)}   {read.head.started}   {kept}")
        for line in list_records(read.records, rids=rids, types=types, previews=previews):
            say(line)
        if not read.is_whole:
            say(f"the trace ends here: its recorder was killed, or runs{' (a line is torn)' if read.torn else ''}")
        say()
    stories = [story for story in requests_of(read.records) if rids is None or story.rid in rids]
    for line in list_requests(stories):
        say(line)


@trace.command(context_settings={"ignore_unknown_options": True})
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--request", "request", metavar="RID", help="Only this request (the beginning of its RID) and its calls.")
@click.option("--masked", is_flag=True, help="Replay a trace without contents: fillers go in their place.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for each step of the cartridge, beyond what it took when it was recorded.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@log_option("warning")
@click.argument("command", nargs=-1, required=True)
@click.pass_context
def replay(
    ctx: click.Context,
    file: Path,
    request: str | None,
    masked: bool,
    patience: float,
    as_json: bool,
    log_level: str,
    command: tuple[str, ...],
) -> None:
    """Start a cartridge, send it what the trace's host had sent, and compare how its requests end.

    Exit code 0: all ended as recorded. 1: at least one did not. 2: wrong use. 130: interrupted.
    """
    import trio

    from capdag.trace import replay as run_replay
    from capdag.trace import requests_of, select

    log_to_stderr(log_level)
    read = _read(file)
    if not (read.head.payloads or masked):
        raise click.UsageError(
            f"{file} was recorded without contents: record it with --payloads, or give --masked to send fillers"
        )
    if request is not None:
        read = select(read, _matching(read, request))

    async def run() -> Replay:
        return await run_replay(read, command, patience=patience)

    if not any(story.asked == "cartridge" for story in requests_of(read.records)):
        raise click.UsageError(f"{file} holds no request to the cartridge: there is nothing to compare")
    try:
        came = trio.run(run)
    except KeyboardInterrupt:
        raise EndedError("interrupted; the cartridge was ended", INTERRUPTED) from None
    if as_json:
        click.echo(json.dumps(_as_json(came)))
    else:
        say("\n".join(_report(came)))
    ctx.exit(0 if came.same else FAILED)


def _read(file: Path) -> Trace:
    from capdag.trace import read_trace

    return read_trace(file)


def _matching(read: Trace, prefix: str) -> set[MessageId]:
    from capdag.trace import match_request, requests_of

    stories = requests_of(read.records)
    found = match_request(stories, prefix)
    if not found:
        known = ", ".join(story.name[:8] for story in stories[:10]) or "none"
        raise click.BadParameter(f"no request's RID begins with {prefix!r}; there are {known}", param_hint="--request")
    return found


def _report(came: Replay) -> list[str]:
    from capdag.wire import show_id

    lines = [
        f"{'same' if outcome.same else 'DIFFERS':<8} {show_id(outcome.rid)[:8]}  {outcome.now or 'no end'}"
        + ("" if outcome.same else f"  (recorded: {outcome.then or 'no end'})")
        + f"  {outcome.cap}"
        for outcome in came.outcomes
    ]
    recorded = "" if came.exit_then in (None, came.exit_now) else f"  (recorded: {came.exit_then})"
    lines.append(f"the process {came.exit_now}{recorded}")
    if came.exit_then is None:
        lines.append("the trace does not hold the end of its process: what came later is not compared")
    lines += [f"note: {note}" for note in came.notes]
    if came.violation is not None:
        lines.append(f"it sent what is no frame: {came.violation}")
    elif came.violation_then is not None:
        lines.append(f"it sent frames only  (recorded: {came.violation_then})")
    if came.stderr and not came.same:
        lines += ["its stderr ended with:", *(f"  {line}" for line in came.stderr.splitlines())]
    return lines


def _as_json(came: Replay) -> dict[str, Any]:
    from capdag.wire import show_id

    outcomes = [
        {"rid": show_id(outcome.rid), "cap": outcome.cap, "recorded": outcome.then, "now": outcome.now}
        for outcome in came.outcomes
    ]
    return {**came._asdict(), "outcomes": outcomes, "same": came.same}
