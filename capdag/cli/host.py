"""`capdag host`: cartridges without a gateway."""

from __future__ import annotations

from pathlib import Path

import click

from ._endpoint import Endpoint
from ._options import config_option, log_option, log_to_stderr, roster_options, settle_config, trace_options


@click.command()
@click.option("--listen", type=Endpoint(), help="Wait on this socket for an engine.")
@click.option("--connect", type=Endpoint(), help="Connect to the engine that listens on this socket.")
@config_option
@roster_options
@trace_options
@log_option("info")
def host(
    listen: Path | None,
    connect: Path | None,
    config_file: Path | None,
    models_dir: str | None,
    commands: tuple[str, ...],
    trace_dir: str | None,
    trace_payloads: bool,
    log_level: str,
) -> None:
    """Run cartridges for an engine that is reached over a socket.

    One engine (a `capdag gateway`, or any switch that speaks the protocol) is served at a time. When it goes, its
    requests are cancelled and its cartridges stopped, and the next one may come.

    \b
    Example, in two terminals:
      capdag host --listen unix:/run/user/1000/models.sock
      capdag gateway --hosts unix:/run/user/1000/models.sock
    """
    if (listen is None) == (connect is None):
        raise click.UsageError("give either --listen unix:PATH or --connect unix:PATH")
    config = settle_config(config_file, models_dir=models_dir, trace_dir=trace_dir, trace_payloads=trace_payloads)
    log_to_stderr(log_level)
    from ._halves import run_host

    run_host(config, commands, listen, connect)
