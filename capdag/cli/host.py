"""`capdag host`: cartridges without a gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from capdag.config import Config

from ._links import address_option, link_options, settle_links
from ._options import config_option, log_option, log_to_stderr, roster_options, settle_config, trace_options


@click.command()
@address_option("--listen", "Wait here for an engine.")
@address_option("--connect", "Connect to the engine that listens here.")
@link_options
@config_option
@roster_options
@trace_options
@log_option("info")
def host(
    config_file: Path | None,
    models_dir: str | None,
    commands: tuple[str, ...],
    trace_dir: str | None,
    trace_payloads: bool,
    log_level: str,
    **links: Any,
) -> None:
    """Run cartridges for an engine: a `capdag gateway`, or any switch that speaks the protocol.

    An address is unix:PATH, tcp:HOST:PORT, tls:HOST:PORT, ws://HOST:PORT/PATH or wss://HOST:PORT/PATH. One engine is
    served at a time. When it goes, its requests are ended, the cartridges are kept warm (keep_warm under [host], 300 s)
    and the next one may come. Ctrl-C ends what runs at once: where answers are to be finished, end the engine first.

    \b
    Examples:
      capdag host --listen unix:/run/user/1000/models.sock
      capdag host --connect wss://gateway.example:8443/hosts --token-file token
      capdag host --listen tls:0.0.0.0:7070 --tls-cert host.pem --tls-key host.key --tls-ca ca.pem
    """

    def settle() -> Config:
        config = settle_config(config_file, models_dir=models_dir, trace_dir=trace_dir, trace_payloads=trace_payloads)
        settled = settle_links(config.host.links, links)
        if not settled.listen and not settled.connect:
            raise click.UsageError(
                "give --listen ADDRESS, where an engine connects, or --connect ADDRESS, where one listens, as unix:PATH"
            )
        return msgspec.structs.replace(config, host=msgspec.structs.replace(config.host, links=settled))

    log_to_stderr(log_level)
    from ._host_half import run_host

    run_host(settle, commands)
