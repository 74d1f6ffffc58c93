"""The `capdag` command.

Commands import the rooms they compose when they run, so that `capdag --help` answers at once.
Exit codes: 1 failed, 2 wrong usage or configuration, 3 the port or address is taken; 128 and the number of the signal
that ended it, which is SIGPIPE's where nobody reads what it writes.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from ._failure import INTERRUPTED, OutputError, UnreadError, exit_code, expected_error, tell
from ._owner import check_owner
from ._saying import say
from ._standard import drop_output, hold_standard_streams
from .call import call
from .check import check
from .explain import explain
from .gateway import gateway
from .host import host
from .models import models
from .new import new
from .ps import ps
from .serve import serve
from .trace import trace

__all__ = ["main"]


class _Commands(click.Group):
    """Renders expected errors as one message and an exit code; any other is a fault of ours and shows its trace."""

    def invoke(self, ctx: click.Context) -> Any:
        hold_standard_streams()
        try:
            check_owner()
            return super().invoke(ctx)
        except KeyboardInterrupt:  # before the command has come to watch for it
            click.echo("Interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except Exception as error:
            expected = expected_error(error)
            if expected is None:
                raise
            if isinstance(expected, OutputError):
                drop_output()
            if not isinstance(expected, UnreadError):
                say(f"Error: {tell(expected)}", err=True)
            ctx.exit(exit_code(expected))

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError as error:  # --help and --version speak here
            drop_output()
            raise click.exceptions.Exit(exit_code(UnreadError(str(error)))) from None


def _show_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    try:
        number = version("capdag-trio")
    except PackageNotFoundError:
        number = "(run from a folder, not installed)"
    click.echo(f"capdag-trio {number}")
    ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Run inference engines as supervised processes and reach them by capability.

    \b
    First steps:
      capdag models fetch          bring a small chat model (once)
      capdag serve                 serve it at http://127.0.0.1:8080/v1 for any OpenAI client
      capdag ps                    see what runs, from another terminal
      echo hi | capdag call echo   call one capability without a server
      capdag new parrot            make a cartridge of your own

    Each command's --help has examples.
    """


for _command in (serve, ps, call, explain, check, models, new, host, gateway, trace):
    main.add_command(_command)
