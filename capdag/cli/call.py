"""`capdag call`: one capability, without a server."""

from __future__ import annotations

from pathlib import Path

import click

from ._options import config_option, log_option, log_to_stderr, roster_options, settle_config, trace_options


@click.command()
@click.argument("cap")
@click.option(
    "--arg",
    "words",
    multiple=True,
    metavar="MEDIA=VALUE",
    help="An argument: VALUE is - for stdin, @FILE for a file, or text (@@ stands for @). MEDIA= may be left out for "
    "the main input. Of a sequence each text is an item, each line of a file an item in JSON; it may be given again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print every value as a line of JSON that says where it belongs.")
@config_option
@roster_options
@trace_options
@log_option("warning")
def call(
    cap: str,
    words: tuple[str, ...],
    as_json: bool,
    config_file: Path | None,
    models_dir: str | None,
    commands: tuple[str, ...],
    trace_dir: str | None,
    trace_payloads: bool,
    log_level: str,
) -> None:
    """Call a capability with a host of its own, and print the answer.

    CAP is a cap URN, or a name that one capability has. Without --arg the main input is stdin. Bytes and text are
    printed as they are (on a terminal with escapes for what could act on it), items of a sequence as one line of JSON
    each; progress and messages go to stderr.

    \b
    Examples:
      echo hi | capdag call echo
      capdag call count --arg 3
      capdag call 'cap:chat;model=smollm2-135m-instruct' \\
        --arg '{"messages": [{"role": "user", "content": "What is 2+2?"}]}'
      capdag call upper --cartridge 'node upper.mjs' --arg @letter.txt
    """
    config = settle_config(config_file, models_dir=models_dir, trace_dir=trace_dir, trace_payloads=trace_payloads)
    log_to_stderr(log_level)
    from ._calling import run_call

    run_call(config, commands, cap, words, as_json=as_json)
