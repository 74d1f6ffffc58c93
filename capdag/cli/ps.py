"""`capdag ps`: what runs in this user's servers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from capdag.errors import CapdagError
from capdag.printable import printable
from capdag.urn import CapUrn, UrnError

from ._folders import admin_socket, admin_sockets, where_sockets_are
from ._query import LOCAL, NoAnswerError, NoServerError, ask_ps, ask_reload, ask_reset, something_listens, title
from ._saying import say

_LONGEST_CELL = 200
"""Characters of a cell that are shown."""

_COLUMNS = ("CARTRIDGE", "STATE", "PID", "ACTIVE", "WAITING", "RESTARTS", "POOLS", "LAST TROUBLE")

_LINK_COLUMNS = ("LINK", "STATE", "LAST TROUBLE")
_QUEUE_COLUMNS = ("QUEUED FOR", "WAITING", "LONGEST WAIT", "")

Answers = Mapping[str, Mapping[str, Any]]
"""What each server runs, by the name of its admin socket: the port, or that of a host process."""


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), metavar="N", help="Only the server on this port.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that is known, as JSON.")
@click.option("--reset", metavar="NAME", help="Give a cartridge that was given up another chance.")
@click.option("--reload", is_flag=True, help="Read again which cartridges and models there are.")
def ps(port: int | None, as_json: bool, reset: str | None, reload: bool) -> None:
    """Show the cartridges of running servers and their links to other processes; reset a cartridge, or read them again.

    --reload reads the configuration file, what is installed and the models folder: what is new is served, what is gone
    or has changed takes no new requests and is stopped once it has answered those it holds. Other keys of the file than
    those of cartridges and models need a restart.

    \b
    Examples:
      capdag ps
      capdag ps --port 9000 --json
      capdag ps --reset llama-cpp/smollm2-135m-instruct
      capdag ps --reload
    """
    servers, silent = _servers(port)
    with _telling(silent):
        if reset is not None:
            _reset(servers, reset)
        elif reload:
            _reload(servers)
        elif as_json:
            click.echo(json.dumps(servers, indent=2))
        else:
            _show(servers)


def _servers(port: int | None) -> tuple[Answers, Sequence[str]]:
    """Return what each server runs, or only that of a port with the host processes that it reaches, and a line for
    each that does not answer.

    A socket that a killed server left is passed over. Raises NoServerError if there is none, NoAnswerError if none
    answers.
    """
    found, silent = {}, {}
    for path in admin_sockets():
        try:
            found[path.stem] = ask_ps(path)
        except NoServerError:
            continue
        except NoAnswerError as error:
            silent[path.stem] = str(error)
    if port is not None:
        reached = _gateways(found)
        found = {name: answer for name, answer in found.items() if reached.get(name, name) == str(port)}
        silent = {name: line for name, line in silent.items() if name == str(port)}
    if not found:
        raise NoAnswerError("\n".join(silent.values())) if silent else NoServerError(_nothing_found(port))
    return found, list(silent.values())


@contextmanager
def _telling(silent: Sequence[str]) -> Iterator[None]:
    """Raise NoAnswerError after what was to be done with the others, if some servers did not answer."""
    try:
        yield
    except CapdagError as error:
        if not silent:
            raise
        raise CapdagError("\n".join([str(error), *silent])) from None
    if silent:
        raise NoAnswerError("\n".join(silent))


def _nothing_found(port: int | None) -> str:
    which = "" if port is None else f" on port {port}"
    text = f"no server of this user runs{which} with its socket in {where_sockets_are()}"
    if port and something_listens(port):
        return (
            f"{text}, but something listens on port {port}: if that is a capdag, ask with the XDG_RUNTIME_DIR and"
            " TMPDIR that it was started with (it prints the path of its socket)"
        )
    return f"{text}: start one with capdag serve; one that was started with other variables has its socket elsewhere"


def _reset(servers: Answers, name: str) -> None:
    hosts = {server: answer["host"] for server, answer in servers.items() if "host" in answer}
    if not hosts:
        raise CapdagError(f"no host process answers for {' or '.join(map(title, servers))}: is it starting?")
    refusals = {server: ask_reset(admin_socket(server), name) for server in hosts}
    done = [server for server, refusal in refusals.items() if refusal is None]
    if not done:
        reached = _gateways(servers)
        texts = (f"{title(reached.get(server, server))}: {refusal}" for server, refusal in refusals.items())
        raise CapdagError("; ".join(texts))
    cartridges = [cartridge for server in done for cartridge in hosts[server]["cartridges"]]
    untold = any(cartridge["id"] == name and not cartridge["caps"] for cartridge in cartridges)
    say(f"{name} starts again {'now' if untold else 'at its next request'}")


def _reload(servers: Answers) -> None:
    hosts = [server for server, answer in servers.items() if "host" in answer]
    if not hosts:
        raise CapdagError(f"no host process answers for {' or '.join(map(title, servers))}: is it starting?")
    answers = {title(server): ask_reload(admin_socket(server)) for server in hosts}
    for server, answer in answers.items():
        if not isinstance(answer, str):
            say(f"{server}: {_changes(answer)}")
            for notice in answer["notices"]:
                say(f"  {notice}")
    refusals = [
        f"{server} has changed nothing: {answer}" for server, answer in answers.items() if isinstance(answer, str)
    ]
    if refusals:
        raise CapdagError("\n".join(refusals))


def _changes(answer: Mapping[str, Any]) -> str:
    """Return one line: how many cartridges were added, changed, retired and kept, and which."""
    parts = [
        f"{len(answer[key])} {key} ({', '.join(answer[key])})" for key in ("added", "changed", "retired") if answer[key]
    ]
    return ", ".join([*parts, f"{answer['kept']} unchanged"])


def _show(servers: Answers) -> None:
    """Show each cartridge once: where its host answers by itself, the gateway that reaches it shows those rows."""
    halves, reached = _halves(servers), _gateways(servers)
    for name, answer in servers.items():
        if name in reached:
            continue
        near = [answer, *(servers[half] for half, gateway in reached.items() if gateway == name)]
        rows = [row for host in near if "host" in host for row in _host_rows(host["host"])]
        far = {host: facts for host, facts in _hosts(answer).items() if _id(facts) not in halves}
        rows += [row for host, facts in far.items() for row in _far_rows(host, facts)]
        say(title(name))
        _print(_COLUMNS, rows)
        queue = list(_queue_rows(answer))
        if queue:
            _print(_QUEUE_COLUMNS, queue)
        if "links" in answer:
            _print(_LINK_COLUMNS, list(_link_rows(answer)))


def _halves(servers: Answers) -> Mapping[str, str]:
    """Return the host processes that answer, by the id that each tells its engine."""
    return {answer["host"]["id"]: name for name, answer in servers.items() if "switch" not in answer}


def _gateways(servers: Answers) -> Mapping[str, str]:
    """Return the gateway that reaches it for each host process that answers."""
    halves = _halves(servers)
    attached = ((_id(facts), name) for name, answer in servers.items() for facts in _hosts(answer).values())
    return {halves[found]: name for found, name in attached if found in halves}


def _hosts(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the hosts that a gateway reaches in other processes, by the names they attached by."""
    hosts = answer.get("switch", {}).get("hosts", {})
    return {name: facts for name, facts in hosts.items() if name != LOCAL}


def _id(host: Mapping[str, Any]) -> str:
    """Return the id of a host that is attached, as it tells the switch; empty for a foreign one, or a dead slot."""
    return "" if host["state"] == "dead" else host["host_id"] or ""


def _link_rows(answer: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a half's links: each address and, in a gateway, each host that is or was there."""
    hosts, links = _hosts(answer), answer["links"]
    for dialled in links["dialled"]:
        address, state, trouble = dialled["address"], dialled["state"], dialled["trouble"]
        if state == "connected":
            state = hosts.get(address, {}).get("state", state)
        yield (address, state, trouble)
    for listening in links["listening"]:
        turned = sum(listening["turned_away"].values())
        yield (listening["address"], "listening", f"{turned} connections turned away" if turned else "")
    known = {dialled["address"] for dialled in links["dialled"]}
    for name, facts in hosts.items():
        if name not in known:
            yield (name, facts["state"], facts["reason"])


def _queue_rows(answer: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each cap whose requests wait at the switch of the answering process."""
    for cap, line in answer.get("switch", {}).get("queue", {}).get("lines", {}).items():
        state = "no host offers it" if line["outage"] else ""
        yield (cap, str(line["waiting"]), f"{line['longest_wait_ms'] / 1000:.1f} s", state)


def _print(columns: tuple[str, ...], found: Sequence[tuple[str, ...]]) -> None:
    rows = [columns, *(tuple(printable(cell, _LONGEST_CELL) for cell in row) for row in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        say("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _host_rows(host: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a host in the answering process."""
    for cartridge in host["cartridges"]:
        trouble = (cartridge["trouble"] or cartridge["last_exit"] or "").partition("\n")[0]
        state = "paused" if cartridge["pause"] else cartridge["state"]
        counts = (str(cartridge[key]) for key in ("active", "waiting", "restarts"))
        pools = _pools(cartridge["pools"])
        yield (cartridge["id"], state, str(cartridge["pid"] or ""), *counts, pools, trouble)


def _pools(pools: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what runs of what may, as the cartridge has last told it, and what it has in line: of the shared pools,
    and of each cap that has a size of its own."""
    return " ".join(
        f"{_pool_name(name)} {pool['active']}/{_size(pool) or '∞'}" + (f"+{pool['queued']}" if pool["queued"] else "")
        for name, pool in pools.items()
        if _size(pool) or not name.startswith("cap:")
    )


def _pool_name(name: str) -> str:
    """Return a name that a column has room for: of a cap's own pool the tags that tell it from others."""
    try:
        tags = CapUrn.parse(name).tags if name.startswith("cap:") else {}
    except UrnError:
        return name
    return ";".join(tag if value == "*" else f"{tag}={value}" for tag, value in tags.items()) or name


def _size(pool: Mapping[str, Any]) -> int:
    """Return how many may run at once, 0 for any number."""
    return min((bound for bound in (pool["configured"], pool.get("available")) if bound), default=0)


def _far_rows(name: str, host: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a host that does not answer here, as far as it tells the switch."""
    for install in host["installed_cartridges"]:
        if install.get("id") == "identity":  # the host's own record
            continue
        stats = install["runtime_stats"]
        broken = install.get("attachment_error")
        state = "broken" if broken else "running" if stats.get("running") else "not running"
        state = "gone" if host["state"] == "dead" else state
        counts = (str(stats.get("active_request_count", 0)), "", str(stats.get("restart_count", "")))
        pools = _pools(stats.get("pools") or {})
        told = broken.get("message", "") if isinstance(broken, dict) else broken
        trouble = str(told or "").partition("\n")[0]
        yield (f"{name}: {install.get('id')}", state, str(stats.get("pid") or ""), *counts, pools, trouble)
