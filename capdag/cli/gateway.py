"""`capdag gateway`: HTTP without cartridges."""

from __future__ import annotations

from pathlib import Path

import click

from ._endpoint import Endpoint
from ._options import config_option, listen_options, log_option, log_to_stderr, settle_config


@click.command()
@click.option(
    "--hosts", type=Endpoint(), multiple=True, help="Serve what the host on this socket has. May be repeated."
)
@click.option("--listen", type=Endpoint(), help="Wait on this socket for hosts that connect.")
@config_option
@listen_options
@log_option("info")
def gateway(
    hosts: tuple[Path, ...],
    listen: Path | None,
    config_file: Path | None,
    host: str | None,
    port: int | None,
    without_keys: bool,
    log_level: str,
) -> None:
    """Serve over HTTP what hosts in other processes have.

    A host that is not there yet, or goes and comes again, is attached as soon as it answers.

    \b
    Examples:
      capdag gateway --hosts unix:/run/user/1000/models.sock
      capdag gateway --listen unix:/run/user/1000/engine.sock --port 9000
    """
    if not hosts and listen is None:
        raise click.UsageError("give --hosts unix:PATH for each host, or --listen unix:PATH for hosts that connect")
    config = settle_config(config_file, host=host, port=port, without_keys=without_keys)
    log_to_stderr(log_level)
    from ._halves import run_gateway

    run_gateway(config, hosts, listen)
