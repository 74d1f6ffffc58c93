"""One typed configuration from one TOML file, with errors that name the key, the value and the remedy.

Everything has a default, and no file is needed. A value that is `UNSET` is left to the room it belongs to, so that no
default is written twice. The command line overrides the file; the environment overrides nothing.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from capdag.errors import ConfigError
from capdag.urn import CapUrn, UrnError

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
KeepAlive = Seconds | Literal["always"]
PoolSize = Annotated[int, msgspec.Meta(ge=0)]

_TYPE_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: its fields are the known keys."""


class LinksConfig(_Table, frozen=True):
    """What both ends of links have: who may be at the other one, and how long it may be silent (seconds).

    `tls_cert` with `tls_key` is what this side proves itself by, `tls_ca` what the other side's certificate is signed
    by, `token_file` holds what the dialling side shows; all are PEM or text files. `insecure` allows links open to
    strangers.
    """

    tls_cert: str | UnsetType = UNSET
    tls_key: str | UnsetType = UNSET
    tls_ca: str | UnsetType = UNSET
    token_file: str | UnsetType = UNSET
    insecure: bool = False
    handshake_timeout: Seconds | UnsetType = UNSET
    silence: Seconds | UnsetType = UNSET


class GatewayLinks(LinksConfig, frozen=True):
    """`[gateway.links]`: the addresses of hosts to connect to, and those at which hosts that connect are accepted."""

    hosts: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()


class HostLinks(LinksConfig, frozen=True):
    """`[host.links]`: the addresses at which an engine may connect, and those of engines to connect to."""

    listen: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()


class GatewayConfig(_Table, frozen=True):
    """`[gateway]`: where HTTP listens, the settings of `capdag.gateway.GatewaySettings`, and the links to hosts.

    Port 0 takes a free one; times in seconds, sizes in bytes. `without_keys` allows an address that other machines
    reach although no key is asked for; `drain` is how long running requests may go on after Ctrl-C.
    """

    host: str = "127.0.0.1"
    port: Port = 8080
    without_keys: bool = False
    links: GatewayLinks = GatewayLinks()
    commit_after: Seconds | UnsetType = UNSET
    heartbeat: Seconds | UnsetType = UNSET
    write_deadline: Seconds | UnsetType = UNSET
    idle_limit: Seconds | UnsetType = UNSET
    body_deadline: Seconds | UnsetType = UNSET
    body_limit: Count | UnsetType = UNSET
    bodies_limit: Count | UnsetType = UNSET
    answer_limit: Count | UnsetType = UNSET
    drain: Seconds | UnsetType = UNSET
    last_words: Seconds | UnsetType = UNSET
    allowed_hosts: tuple[str, ...] | UnsetType = UNSET


class HostConfig(_Table, frozen=True):
    """`[host]`: the settings of the host runtime (`capdag.host.HostSettings`), in seconds and counts.

    `policy` is the network policy that every cartridge is told, `links` are those to the engine.
    """

    policy: Literal["offline", "no_telemetry", "full"] = "no_telemetry"
    links: HostLinks = HostLinks()
    handshake_timeout: Seconds | UnsetType = UNSET
    identity_timeout: Seconds | UnsetType = UNSET
    first_pause: Seconds | UnsetType = UNSET
    longest_pause: Seconds | UnsetType = UNSET
    heartbeat_interval: Seconds | UnsetType = UNSET
    heartbeat_timeout: Seconds | UnsetType = UNSET
    cancel_grace_idle: Seconds | UnsetType = UNSET
    cancel_grace_busy: Seconds | UnsetType = UNSET
    call_grace: Seconds | UnsetType = UNSET
    stop_grace: Seconds | UnsetType = UNSET
    exit_patience: Seconds | UnsetType = UNSET
    idle_timeout: Seconds | UnsetType = UNSET
    keep_warm: Seconds | UnsetType = UNSET
    retire_timeout: Seconds | UnsetType = UNSET
    flush_timeout: Seconds | UnsetType = UNSET
    republish_interval: Seconds | UnsetType = UNSET
    table_limit: Count | UnsetType = UNSET
    max_streams: Count | UnsetType = UNSET
    debt_limit: Count | UnsetType = UNSET


class SwitchConfig(_Table, frozen=True):
    """`[switch]`: the settings of `capdag.relay.SwitchSettings`, in seconds and counts."""

    notify_timeout: Seconds | UnsetType = UNSET
    identity_timeout: Seconds | UnsetType = UNSET
    max_unproved: Count | UnsetType = UNSET
    cancel_deadline: Seconds | UnsetType = UNSET
    table_limit: Count | UnsetType = UNSET
    max_queued: Count | UnsetType = UNSET
    queue_timeout: Seconds | UnsetType = UNSET
    outage_grace: Seconds | UnsetType = UNSET
    position_interval: Seconds | UnsetType = UNSET


class ModelConfig(_Table, frozen=True):
    """`[models.overrides."ID"]`: what differs for one model from `[models]`. `keep_alive` and `warm` as for a
    cartridge."""

    keep_alive: KeepAlive | UnsetType = UNSET
    warm: bool | UnsetType = UNSET
    slots: Count | UnsetType = UNSET
    context: Count | UnsetType = UNSET
    threads: Count | UnsetType = UNSET


class ModelsConfig(ModelConfig, frozen=True):
    """`[models]`: where model files are and how engines run them.

    `slots` requests run at once, each with `context` tokens; `threads` is per engine process.
    """

    dir: str | UnsetType = UNSET
    overrides: dict[str, ModelConfig] = {}


class CartridgeConfig(_Table, frozen=True):
    """`[[cartridge]]`: a cartridge in any language. `caps` are known before the first start; without any, it is
    started at once so that its manifest tells them. `settings` reaches it as JSON in CAPDAG_CONFIG.

    `keep_alive`: it is stopped once it has held nothing for so many seconds, or never ("always"); without the key
    `idle_timeout` of `[host]` says. `warm` starts it with the server. `pools` are the sizes asked of its pools, by the
    name of a pool (0: unlimited).
    """

    name: str
    command: list[str]
    caps: list[str] = []
    env: dict[str, str] = {}
    settings: dict[str, Any] = {}
    keep_alive: KeepAlive | UnsetType = UNSET
    warm: bool = False
    pools: dict[str, PoolSize] = {}


class TraceConfig(_Table, frozen=True):
    """`[trace]`: record the frames of every cartridge in the folder `dir`, a file for each start; contents are masked
    unless `payloads`."""

    dir: str | UnsetType = UNSET
    payloads: bool = False


_PATHS = {"tls_cert", "tls_key", "tls_ca", "token_file", "dir"}
_ADDRESSES = {"hosts", "accept", "listen", "connect"}

_AnyTable = TypeVar("_AnyTable", bound=_Table)


class Config(_Table, frozen=True):
    """The whole file."""

    gateway: GatewayConfig = GatewayConfig()
    host: HostConfig = HostConfig()
    switch: SwitchConfig = SwitchConfig()
    models: ModelsConfig = ModelsConfig()
    trace: TraceConfig = TraceConfig()
    cartridge: list[CartridgeConfig] = []


def read_config(file: Path) -> Config:
    """Read and check a configuration file. Paths in it that are not absolute start from its folder.

    Raises ConfigError with one line a mistake: the file, the key's path, the value seen and what is expected.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}; give another file with --config") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 (byte {error.start}); save it as UTF-8 text") from None
    try:
        return _placed(parse_config(text), file.parent)
    except ConfigError as error:
        raise ConfigError("\n".join(f"{file}: {line}" for line in str(error).splitlines())) from None


def parse_config(text: str) -> Config:
    """Check the text of a configuration file; see `read_config`."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}") from None
    mistakes = list(_table_mistakes(found, Config, ""))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    config = msgspec.convert(found, Config)
    mistakes = list(_cartridge_mistakes(config.cartridge))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return config


def _placed(config: Config, folder: Path) -> Config:
    """Return a configuration whose relative paths start from `folder`."""
    gateway = msgspec.structs.replace(config.gateway, links=_placed_table(config.gateway.links, folder))
    host = msgspec.structs.replace(config.host, links=_placed_table(config.host.links, folder))
    models, trace = _placed_table(config.models, folder), _placed_table(config.trace, folder)
    return msgspec.structs.replace(config, gateway=gateway, host=host, models=models, trace=trace)


def _placed_table(table: _AnyTable, folder: Path) -> _AnyTable:
    found = given(table)
    paths = {key: _placed_path(found[key], folder) for key in _PATHS & found.keys()}
    places = {key: tuple(_placed_address(text, folder) for text in found[key]) for key in _ADDRESSES & found.keys()}
    return msgspec.structs.replace(table, **paths, **places)


def _placed_path(path: str, folder: Path) -> str:
    return path if path.startswith("~") else str(folder / path)


def _placed_address(address: str, folder: Path) -> str:
    """Return one address, or several with commas between, with the paths of unix sockets placed."""
    parts = (part.strip() for part in address.split(","))
    return ",".join(
        f"unix:{_placed_path(part.removeprefix('unix:'), folder)}" if part[5:] and part.startswith("unix:") else part
        for part in parts
    )


def _table_mistakes(found: object, table: type[_Table], path: str) -> Iterator[str]:
    """Yield a line for each key of a table that is unknown, missing or has a wrong value."""
    if not isinstance(found, dict):
        yield f"{path} = {_show(found)}: expected a table"
        return
    types = get_type_hints(table, include_extras=True)
    for key, value in found.items():
        where = f"{path}.{_quote(key)}" if path else _quote(key)
        if key not in types:
            yield f"{where}: unknown key; {_nearest(key, list(types))}"
        else:
            yield from _value_mistakes(value, types[key], where)
    for field in msgspec.structs.fields(table):
        if field.required and field.name not in found:
            yield f"{path}.{field.name}: missing; every [[cartridge]] needs it"


def _value_mistakes(value: object, wanted: Any, path: str) -> Iterator[str]:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if isinstance(wanted, type) and issubclass(wanted, _Table):
        yield from _table_mistakes(value, wanted, path)
    elif origin is list and isinstance(value, dict):
        yield f"{path}: expected a list; for a list of tables write [[{path}]], with two brackets"
    elif origin is list and isinstance(value, list):
        for number, item in enumerate(value):
            yield from _value_mistakes(item, arguments[0], f"{path}[{number}]")
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            yield from _value_mistakes(item, arguments[1], f"{path}.{_quote(key)}")
    else:
        try:
            msgspec.convert(value, wanted)
        except msgspec.ValidationError as error:
            yield f"{path} = {_show(value)}: {_in_words(str(error), wanted)}"


def _nearest(key: str, known: Sequence[str]) -> str:
    close = get_close_matches(key, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"


def _in_words(message: str, wanted: Any) -> str:
    """Say msgspec's complaint in the words of the file."""
    if message.startswith("Invalid enum value"):
        kinds = (wanted, *get_args(wanted))
        choices = [_show(word) for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
        numbers = ["a number"] if Seconds in kinds else []
        return f"expected {' or '.join([*choices, *numbers])}"
    for name, words in _TYPE_WORDS.items():
        message = message.replace(f"`{name}`", words)
    return message[:1].lower() + message[1:]


def _cartridge_mistakes(cartridges: Sequence[CartridgeConfig]) -> Iterator[str]:
    """Yield a line for what types cannot say: names that clash, commands, caps and settings that cannot be used."""
    first: dict[str, int] = {}
    for number, cartridge in enumerate(cartridges):
        path = f"cartridge[{number}]"
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", cartridge.name):
            yield f"{path}.name = {_show(cartridge.name)}: expected letters, digits, '.', '_' and '-'"
        if first.setdefault(cartridge.name, number) != number:
            taken = first[cartridge.name]
            yield f"{path}.name = {_show(cartridge.name)}: cartridge[{taken}] has this name; give another"
        if not cartridge.command:
            yield f"{path}.command = []: expected the program and its arguments"
        for index, cap in enumerate(cartridge.caps):
            try:
                CapUrn.parse(cap)
            except UrnError as error:
                yield f"{path}.caps[{index}] = {_show(cap)}: {error}"
        try:
            json.dumps(cartridge.settings, allow_nan=False)
        except (TypeError, ValueError) as error:
            yield f"{path}.settings = {_show(cartridge.settings)}: {error}; settings travel as JSON, write it as text"


def given(table: _Table) -> Mapping[str, Any]:
    """Return the values of a table that the file sets or that have a default here, by key."""
    pairs = ((name, getattr(table, name)) for name in table.__struct_fields__)
    return {name: value for name, value in pairs if value is not UNSET}


def _quote(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() else json.dumps(key)


def _show(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
