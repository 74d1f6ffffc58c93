"""`capdag new`: a cartridge project that answers at once."""

from __future__ import annotations

import shlex
import sys

import click


@click.command()
@click.argument("name")
@click.option("--async", "is_async", is_flag=True, help="Write the handlers as trio functions, not as plain ones.")
@click.option(
    "--cap",
    "caps",
    multiple=True,
    metavar="URN",
    help="Serve this capability instead of chat. May be repeated.",
)
def new(name: str, is_async: bool, caps: tuple[str, ...]) -> None:
    """Make a project for a cartridge: a folder NAME with a package, tests and all that it needs to be served.

    It is a chat model that any OpenAI client can talk to, with a stand-in for the engine: put yours in its place.
    Plain handlers suit engines that block; each runs in a thread of its own.

    \b
    Examples:
      capdag new parrot
      capdag new async_parrot --async
      capdag new loud --cap 'cap:in=media:text;out=media:text;shout'
    """
    from ._new_caps import read_caps
    from ._project import write_project

    read = read_caps(caps)
    files = write_project(name, read, is_async=is_async)
    run = f"capdag serve --config {name}/capdag.toml"
    if read:
        given = "" if read[0].urn.in_media.is_void else "echo hello | "
        run = f"{given}capdag call {read[0].alias} --config {name}/capdag.toml"
    click.echo(
        f"{name}/ has {len(files)} files; {name}/README.md says what they are. What to do next:\n"
        f"  {run}\n"
        f"  pip --python {shlex.quote(sys.executable)} install -e {name}    (then `capdag serve` finds it by itself)\n"
        f"  cd {name} && python -m pytest"
    )
