"""`capdag ps`: what runs in this user's servers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from capdag.errors import CapdagError

from ._folders import admin_socket, admin_sockets
from ._query import NoServerError, ask_ps, ask_reset

_COLUMNS = ("CARTRIDGE", "STATE", "PID", "ACTIVE", "WAITING", "RESTARTS", "LAST TROUBLE")


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), metavar="N", help="Only the server on this port.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that is known, as JSON.")
@click.option("--reset", metavar="NAME", help="Give a cartridge that was given up another chance.")
def ps(port: int | None, as_json: bool, reset: str | None) -> None:
    """Show the cartridges of running servers, or reset one.

    \b
    Examples:
      capdag ps
      capdag ps --port 9000 --json
      capdag ps --reset llama-cpp/smollm2-135m-instruct
    """
    if reset is not None:
        _reset(_servers(port), reset)
    elif as_json:
        click.echo(json.dumps({path.stem: answer for path, answer in _servers(port).items()}, indent=2))
    else:
        for path, answer in _servers(port).items():
            _show(path.stem, answer)


def _servers(port: int | None) -> Mapping[Path, Mapping[str, Any]]:
    """Return what each server runs, by its admin socket; a socket that a killed server left is passed over.

    Raises NoServerError if there is none.
    """
    found = {}
    for path in admin_sockets() if port is None else [admin_socket(port)]:
        try:
            found[path] = ask_ps(path)
        except NoServerError:
            continue
    if not found:
        which = "no server of this user runs" if port is None else f"no server of this user runs on port {port}"
        raise NoServerError(f"{which}: start one with capdag serve, or see its log if it should be there")
    return found


def _reset(servers: Mapping[Path, object], name: str) -> None:
    refusals = [ask_reset(path, name) for path in servers]
    if None not in refusals:
        raise CapdagError("; ".join(str(refusal) for refusal in refusals))
    click.echo(f"{name} starts again at its next request")


def _show(server: str, answer: Mapping[str, Any]) -> None:
    rows = [_COLUMNS, *(_host_rows(answer["host"]) if "host" in answer else _switch_rows(answer.get("switch", {})))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    click.echo(f"port {server}" if server.isdigit() else server)
    for row in rows:
        click.echo("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _host_rows(host: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a host in the answering process."""
    for cartridge in host["cartridges"]:
        trouble = cartridge["trouble"] or cartridge["last_exit"] or ""
        counts = (str(cartridge[key]) for key in ("active", "waiting", "restarts"))
        yield (cartridge["id"], cartridge["state"], str(cartridge["pid"] or ""), *counts, trouble.partition("\n")[0])


def _switch_rows(switch: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of hosts in other processes, as far as they tell the switch."""
    for name, host in switch.get("hosts", {}).items():
        for install in host["installed_cartridges"]:
            if install.get("id") == "identity":  # the host's own record
                continue
            stats = install["runtime_stats"]
            broken = install.get("attachment_error") or {}
            state = "broken" if broken else "running" if stats.get("running") else "not running"
            counts = (str(stats.get("active_request_count", "")), "", str(stats.get("restart_count", "")))
            trouble = str(broken.get("message", "")).partition("\n")[0]
            yield (f"{name}: {install.get('id')}", state, str(stats.get("pid") or ""), *counts, trouble)
