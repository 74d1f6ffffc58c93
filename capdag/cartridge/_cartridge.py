"""What an author declares: a cartridge, its caps and its pools."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from capdag.errors import CapdagError, ConfigError
from capdag.urn import CapUrn, UrnError
from capdag.wire import ALL_POOL, NetworkPolicy
from capdag.wire.manifest import identity_cap

from ._admission import Admission
from ._descriptors import Descriptors, claim_descriptors
from ._manifest import cap_object, manifest_object
from ._request import Request
from ._runtime import Runtime
from ._served import Handler, ServedCap, serve

if TYPE_CHECKING:
    from collections.abc import Iterable

SETTINGS_VARIABLE = "CAPDAG_CONFIG"
"""Environment variable with the cartridge's settings, a JSON object."""

EXIT_USAGE = 2
"""Exit code of a cartridge that is not set up right: nothing was said to the host."""

EXIT_INTERRUPTED = 130

_COROUTINE, _GENERATOR, _ASYNC_GENERATOR = 0x80, 0x20, 0x200

AnyHandler = TypeVar("AnyHandler", bound=Handler)


class Cartridge:
    """A named set of caps with their handlers. Declaring does nothing yet: `run` does.

    `capacity` bounds the requests that run at once over all caps (0: no bound).
    """

    def __init__(self, name: str, *, version: str, description: str = "", capacity: int = 0) -> None:
        self.name = name
        self.version = version
        self.description = description
        self.policy: NetworkPolicy | None = None
        self._capacities: dict[str, int] = {}
        self._shared: dict[str, list[str]] = {}
        self._caps: dict[str, ServedCap] = {}
        self._settings: dict[str, Any] | None = None
        identity = serve(identity_cap(), _echo_everything)
        self._caps[identity.text] = identity
        self._set_capacity(ALL_POOL, capacity)

    @property
    def settings(self) -> dict[str, Any]:
        """The table of settings the host gave, from the environment variable CAPDAG_CONFIG; empty without one.

        Raises ConfigError if it is not a JSON object.
        """
        if self._settings is None:
            self._settings = _read_settings(os.environ.get(SETTINGS_VARIABLE, ""))
        return self._settings

    def cap(
        self,
        urn: str,
        *,
        title: str,
        aliases: Sequence[str],
        capacity: int = 0,
        args: Sequence[Mapping[str, Any]] | None = None,
        outputs: Sequence[Mapping[str, Any]] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Callable[[AnyHandler], AnyHandler]:
        """Decorate a handler: `add_cap` with what is decorated."""

        def register(handler: AnyHandler) -> AnyHandler:
            self.add_cap(
                urn, handler, title=title, aliases=aliases, capacity=capacity, args=args, outputs=outputs,
                metadata=metadata,
            )  # fmt: skip
            return handler

        return register

    def add_cap(
        self,
        urn: str,
        handler: Handler,
        *,
        title: str,
        aliases: Sequence[str],
        capacity: int = 0,
        args: Sequence[Mapping[str, Any]] | None = None,
        outputs: Sequence[Mapping[str, Any]] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Serve a cap.

        `handler` is a plain function of a `Request`, run in a thread of its own, or an `async def` of an
        `AsyncRequest`, run as a task under trio; a cartridge may have both. `capacity` bounds the requests of this cap
        that run at once (0: no bound); more wait in order, and their callers are told.

        `args` and `outputs` are the manifest's objects (protocol-spec/wire.md, Manifest); without them the URN's in=
        and out= are the one argument and the one output, a scalar. Raises ConfigError naming the cap and the field.
        """
        facts = cap_object(urn, title=title, aliases=aliases, args=args, outputs=outputs, metadata=metadata)
        where = f"cap {facts['urn']!r}"
        is_async = _check_handler(where, handler)
        if facts["urn"] in self._caps:
            raise ConfigError(f"{where} is registered twice: one handler a cap")
        self._caps[facts["urn"]] = serve(facts, handler, is_async=is_async)
        self._set_capacity(facts["urn"], capacity)

    def add_pool(self, name: str, caps: Iterable[str], capacity: int) -> None:
        """Make registered caps share `capacity` places (0: no bound), beside their own. Raises ConfigError."""
        members = []
        for cap in caps:
            text = _canonical(f"pool {name!r}", cap)
            if text not in self._caps:
                raise ConfigError(f"pool {name!r}: cap {text!r} is not registered: register it first")
            members.append(text)
        if name in self._capacities or not members or name.startswith("cap:"):
            raise ConfigError(
                f"pool {name!r} needs a name of its own (not {ALL_POOL!r}, not a cap URN) and at least one cap"
            )
        self._shared[name] = members
        self._set_capacity(name, capacity)

    def manifest(self) -> dict[str, Any]:
        """Return the manifest as JSON values. Raises ConfigError if the cartridge serves nothing."""
        capacities = {name: capacity for name, capacity in self._capacities.items() if capacity}
        pools = {"pools": self._shared, "capacities": capacities}
        caps = [cap.facts for cap in self._caps.values()]
        return manifest_object(self.name, self.version, self.description, caps, pools)

    def run(self) -> NoReturn:
        """Speak frames over stdin and stdout until stdin ends, then end the process: handlers have 2 s for that.

        Any command-line argument means command mode instead: `manifest`, `--help`, or a cap by its alias, with its
        arguments as options, positions and stdin. Started directly, not by `python -m capdag.cartridge MODULE`, stdin
        and stdout are moved away only now: import engines in handlers then. A cartridge that is not set up right says
        so on stderr and exits with code 2.
        """
        # Never sys.exit: a handler may be deep inside an engine, which a tidy end of the interpreter would crash.
        try:
            code = self._run_command() if len(sys.argv) > 1 else self._serve(claim_descriptors())
        except CapdagError as error:
            sys.stderr.write(f"cartridge {self.name}: {error}\n")
            code = EXIT_USAGE
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        os._exit(code)

    def _run_command(self) -> int:
        from ._command import run_command

        return run_command(self, list(self._caps.values()), self._serve, sys.argv[1:])

    def _serve(self, descriptors: Descriptors) -> int:
        """Speak frames over two descriptors until the first ends; returns the exit code."""
        manifest = json.dumps(self.manifest(), separators=(",", ":")).encode()
        _ = self.settings
        admission = Admission(list(self._caps), self._shared, self._capacities)
        return Runtime(list(self._caps.values()), admission, manifest, descriptors, self._set_policy).run()

    def _set_policy(self, policy: NetworkPolicy) -> None:
        self.policy = policy

    def _set_capacity(self, pool: str, capacity: int) -> None:
        if type(capacity) is not int or capacity < 0:
            raise ConfigError(f"capacity of {pool!r} must be an integer of at least 0 (0: no bound), not {capacity!r}")
        self._capacities[pool] = capacity


def _echo_everything(request: Request) -> None:
    """The identity cap: every value comes back as it was."""
    for value in request.main_input():
        request.output.write(value)


def _check_handler(where: str, handler: Handler) -> bool:
    """Return True for an async function. Raises ConfigError for what is no handler."""
    if not callable(handler):
        raise ConfigError(f"{where}: the handler must be a function of one request, not {handler!r}")
    while isinstance(handler, partial):
        handler = handler.func
    code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    flags = getattr(code, "co_flags", 0)
    if flags & (_GENERATOR | _ASYNC_GENERATOR):
        raise ConfigError(f"{where}: the handler must not yield: answer with request.output")
    return bool(flags & _COROUTINE)


def _canonical(where: str, cap: str) -> str:
    try:
        return str(CapUrn.parse(cap))
    except UrnError as error:
        raise ConfigError(f"{where}: {cap!r} is not a cap URN: {error}") from None


def _read_settings(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{SETTINGS_VARIABLE} is not JSON: {error}; it begins {text[:80]!r}") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"{SETTINGS_VARIABLE} must be a JSON object, not {type(settings).__name__}: {text[:80]!r}")
    return settings
