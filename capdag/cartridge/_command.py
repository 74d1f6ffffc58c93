"""Command mode: what a cartridge does when it is started with arguments, by a person and not by a host.

click is imported here and beneath, nowhere else in the SDK: a cartridge under a host never pays for it.
"""

from __future__ import annotations

import inspect
import io
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click

from capdag.errors import CapdagError, ConfigError, RequestFailedError
from capdag.printable import printable_json, printable_lines
from capdag.urn import CapTable, CapUrn, UrnError
from capdag.wire import IDENTITY_CAP, LogRecord, StreamHead

from ._children import kill_children
from ._command_arguments import CommandArguments, GivenArgument
from ._command_call import CommandCall
from ._command_loop import UNREAD, CommandLoop, RunRuntime, StoppedError
from ._descriptors import claim_output
from ._served import ServedCap
from .terminal import AnswerPrinter, Sidelines, render_failure, render_raw

if TYPE_CHECKING:
    from ._cartridge import Cartridge

EXIT_FAILED, EXIT_USAGE = 1, 2


class _Invocation(NamedTuple):
    """What the command line asks for: a cap with its arguments, and where its answer goes."""

    cap: ServedCap
    arguments: Sequence[GivenArgument]
    raw: bool
    saved: Sequence[tuple[str, str]]


def run_command(cartridge: Cartridge, caps: Sequence[ServedCap], run_runtime: RunRuntime, words: Sequence[str]) -> int:
    """Do what the words of a command line say, with `run_runtime` to serve one call; returns the exit code.

    0 done, 1 the call has failed, 2 wrong use, 128 and the signal's number if one ended it or nobody read the answer.
    The process must end at once then: a handler that did not hear of its cancel may still run.
    """
    try:
        output_fd = claim_output()
        said = io.StringIO()
        with redirect_stdout(said):
            outcome = _Commands(cartridge, caps).main(list(words), prog_name=_program(), standalone_mode=False)
        if not isinstance(outcome, _Invocation):
            _write(output_fd, printable_lines(said.getvalue()).encode())
            return 0
        _ = cartridge.settings  # if they are wrong it is told here, not in the runtime's thread
        _call(outcome, run_runtime, output_fd)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except StoppedError as error:
        _complain(cartridge, str(error))
        return error.exit_code
    except RequestFailedError as error:
        # That nobody else is here to be called is no fault of the machine's, and the message says what to do.
        _complain(cartridge, render_failure(error, whose_move=error.code != "NO_HANDLER"))
        return EXIT_FAILED
    except CapdagError as error:
        _complain(cartridge, str(error))
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    finally:
        kill_children()
    return 0


def _complain(cartridge: Cartridge, message: str) -> None:
    if message:
        sys.stderr.write(f"{cartridge.name}: {printable_lines(message)}\n")


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except BrokenPipeError:
        raise StoppedError("", UNREAD) from None
    except OSError as error:
        raise StoppedError(f"cannot write to stdout: {error.strerror}", EXIT_FAILED) from None


def _program() -> str:
    """Return how this cartridge was started, as it was typed."""
    typed = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    if len(typed) == 2 and not typed[1].endswith(".py"):
        return Path(typed[1]).name
    return " ".join([Path(typed[0]).name, *typed[1:]])


class _Commands(click.Group):
    """A cartridge as a command: `manifest`, and each cap by its aliases or its URN."""

    def __init__(self, cartridge: Cartridge, caps: Sequence[ServedCap]) -> None:
        super().__init__(
            help=f"{cartridge.name} {cartridge.version}\n\n{cartridge.description}",
            epilog="Without arguments it speaks frames with a host on stdin and stdout.",
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        )
        click.version_option(cartridge.version, "--version", "-v", message=f"{cartridge.name} %(version)s")(self)
        self._table: CapTable[str] = CapTable()
        self._by_urn = {cap.text: cap for cap in caps}
        named: dict[str, list[ServedCap]] = {}
        for cap in caps:
            self._table.register(cap.urn, cap.text)
            for alias in cap.facts["aliases"]:
                named.setdefault(alias, []).append(cap)
        for alias, meant in named.items():
            self.add_command(_command(meant[0], alias) if len(meant) == 1 else _ambiguous(alias, meant), alias)
        manifest = cartridge.manifest()
        self.add_command(
            click.Command(
                "manifest",
                callback=lambda: click.echo(printable_json(manifest, indent=2)),
                short_help="Print the manifest.",
                help="Print the manifest, what this cartridge can do, as JSON.",
            )
        )

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            close = get_close_matches(args[0], self.commands, n=1, cutoff=0.4)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(self.commands)}"
            raise click.UsageError(f"No such command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if not cmd_name.startswith("cap:"):
            return self.commands.get(cmd_name)
        try:
            served = self._table.best_match(CapUrn.parse(cmd_name))
        except UrnError as error:
            raise click.UsageError(f"{cmd_name!r} is no cap URN: {error}", ctx) from None
        return None if served is None else _command(self._by_urn[served], cmd_name)


def _ambiguous(alias: str, meant: Sequence[ServedCap]) -> click.Command:
    def refuse() -> None:
        urns = " or ".join(repr(cap.text) for cap in meant)
        raise click.UsageError(f"{alias!r} may mean {urns}: give the cap URN in its place")

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(alias, callback=refuse, short_help=f"({len(meant)} caps)", context_settings=settings)


def _command(cap: ServedCap, name: str) -> click.Command:
    arguments = CommandArguments(cap)
    params: list[click.Parameter] = [*arguments.params]
    if any(output.is_sequence for output in cap.outputs) and "--raw" not in arguments.flags:
        params.append(click.Option(["--raw"], is_flag=True, help="Print items as they are, not as lines of JSON."))
    if (named := _named_outputs(cap)) and "--save" not in arguments.flags:
        kind = (click.Choice(list(named)), click.Path())
        text = "Write an output to a file, as it is."
        params.append(click.Option(["--save"], type=kind, multiple=True, metavar="OUTPUT FILE", help=text))

    def invoke(raw: bool = False, save: Sequence[tuple[str, str]] = (), **values: Any) -> _Invocation:
        return _Invocation(cap, arguments.given(values), raw, save)

    title = cap.facts["title"]
    paragraphs = [title, (inspect.getdoc(cap.handler) or "") if inspect.isroutine(cap.handler) else ""]
    if arguments.words:
        paragraphs.append("\n".join(["\b", *(f"{word}: {said}" for word, said in arguments.words.items())]))
    return click.Command(
        name,
        params=params,
        callback=invoke,
        short_help=title,
        help="\n\n".join(filter(None, paragraphs)),
        epilog=f"\b\n{cap.text}",
        hidden=cap.text == IDENTITY_CAP or name != cap.facts["aliases"][0],
    )


def _named_outputs(cap: ServedCap) -> dict[str, str]:
    """Return the media URN of each output beside the main one, by its name."""
    outputs = zip(cap.facts["outputs"], cap.outputs, strict=True)
    return {said["name"]: facts.media_urn for said, facts in outputs if not facts.is_main}


def _call(invocation: _Invocation, run_runtime: RunRuntime, output_fd: int) -> None:
    """Call a cap and show what comes. Raises CapdagErrors."""
    sidelines = Sidelines(sys.stderr)
    printer = AnswerPrinter(on_terminal=os.isatty(output_fd), raw=invocation.raw)

    def show_log(record: LogRecord) -> None:
        sidelines.show(record)
        sys.stderr.flush()

    def show_value(stream: StreamHead, value: Any, meta: Mapping[str, Any]) -> None:
        file = files.get(stream.output or "")
        if file is not None:
            file.write(render_raw(value))
            return
        sidelines.clear()
        loop.write(printer.show(stream, value, meta))

    with ExitStack() as stack:
        named = _named_outputs(invocation.cap)
        files = {named[name]: stack.enter_context(_create(path)) for name, path in invocation.saved}
        stack.callback(sidelines.end)
        call = CommandCall(invocation.cap.text, invocation.arguments, show_value, show_log, _program())
        loop = CommandLoop(call, run_runtime, output_fd)
        loop.run()
    _write(output_fd, printer.end())


def _create(path: str) -> BinaryIO:
    try:
        return open(path, "wb")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
