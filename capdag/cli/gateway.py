"""`capdag gateway`: HTTP without cartridges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from ._links import address_option, link_options, settle_links
from ._options import config_option, listen_options, log_option, log_to_stderr, settle_config


@click.command()
@address_option("--hosts", "Serve what the hosts that listen here have.")
@address_option("--accept", "Wait here for hosts that connect.")
@link_options
@config_option
@listen_options
@log_option("info")
def gateway(
    config_file: Path | None, host: str | None, port: int | None, without_keys: bool, log_level: str, **links: Any
) -> None:
    """Serve over HTTP what hosts in other processes, or on other machines, have.

    An address is unix:PATH, tcp:HOST:PORT, tls:HOST:PORT, ws://HOST:PORT/PATH or wss://HOST:PORT/PATH. A host that is
    not there yet, or goes and comes again, is attached as soon as it answers. Ctrl-C gives running answers drain
    seconds (under [gateway], 4).

    \b
    Examples:
      capdag gateway --hosts unix:/run/user/1000/models.sock
      capdag gateway --hosts tcp:127.0.0.1:7070,tcp:127.0.0.1:7071 --port 9000
      capdag gateway --accept wss://0.0.0.0:8443/hosts --tls-cert g.pem --tls-key g.key --token-file token
    """
    config = settle_config(config_file, host=host, port=port, without_keys=without_keys)
    settled = settle_links(config.gateway.links, links)
    if not settled.hosts and not settled.accept:
        raise click.UsageError(
            "give --hosts ADDRESS for each host that listens, or --accept ADDRESS for hosts that connect, as unix:PATH"
        )
    config = msgspec.structs.replace(config, gateway=msgspec.structs.replace(config.gateway, links=settled))
    log_to_stderr(log_level)
    from ._gateway_half import run_gateway

    run_gateway(config)
