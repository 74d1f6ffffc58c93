"""`capdag explain`: which cartridge a request would go to, and what decides."""

from __future__ import annotations

from pathlib import Path

import click

from ._failure import FAILED
from ._options import config_option, log_option, log_to_stderr, roster_options, settle_config
from ._saying import say


@click.command()
@click.argument("cap", required=False)
@click.option(
    "--chat",
    "chat_file",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Explain the request that the gateway makes of this chat body, a JSON file; - for stdin.",
)
@config_option
@roster_options
@log_option("warning")
@click.pass_context
def explain(
    ctx: click.Context,
    cap: str | None,
    chat_file: Path | None,
    config_file: Path | None,
    models_dir: str | None,
    commands: tuple[str, ...],
    log_level: str,
) -> None:
    """Show who would serve a request, and what lets each cap in or keeps it out.

    The candidates are the caps that capdag serve would offer, given the same options. No engine is started; a
    cartridge that does not say beforehand what it can do is asked once. Exit code 1 if nothing serves the request.

    \b
    Examples:
      capdag explain 'cap:chat;json-schema'
      capdag explain 'cap:chat;model=smollm2-135m-instruct;tools'
      capdag explain --chat body.json
    """
    if (cap is None) == (chat_file is None):
        raise click.UsageError("give a cap URN, or --chat FILE: one of the two")
    config = settle_config(config_file, models_dir=models_dir)
    log_to_stderr(log_level)
    from ._candidates import find_candidates
    from ._explaining import explain_request, needs_of_chat, parse_request

    request = parse_request(cap) if cap is not None else needs_of_chat(chat_file or Path("-"))
    candidates, notices = find_candidates(config, commands)
    lines, served = explain_request(candidates, request)
    say("\n".join([*lines, "", *notices] if notices else lines))
    ctx.exit(0 if served else FAILED)
