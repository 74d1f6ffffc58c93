"""What an author declares: a cartridge, its caps and its pools."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from capdag.errors import AttributionClass, CapdagError, ConfigError
from capdag.urn import CapUrn, MediaUrn, UrnError
from capdag.wire import ALL_POOL, NetworkPolicy
from capdag.wire.manifest import identity_cap

from ._descriptors import Descriptors, claim_descriptors
from ._errors import CartridgeError
from ._manifest import cap_object, manifest_object
from ._selector import LIVE, FeedOpener, LiveFeed
from ._served import Handler, ServedCap, serve

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._request import Request

SETTINGS_VARIABLE = "CAPDAG_CONFIG"
"""Environment variable with the cartridge's settings, a JSON object."""

EXIT_USAGE = 2
"""Exit code of a cartridge that is not set up right: nothing was said to the host."""

EXIT_INTERRUPTED = 130

_COROUTINE, _GENERATOR, _ASYNC_GENERATOR = 0x80, 0x20, 0x200

AnyHandler = TypeVar("AnyHandler", bound=Handler)
AnyFeed = TypeVar("AnyFeed", bound=FeedOpener)


class Cartridge:
    """A named set of caps with their handlers. Declaring does nothing yet: `run` does.

    `capacity` bounds the requests that run at once over all caps (0: no bound). `policy` is what the host allows of
    the network, always the newest POLICY, None before the first: `offline`, `no_telemetry` or `full`.
    """

    def __init__(self, name: str, *, version: str, description: str = "", capacity: int = 0) -> None:
        self.name = name
        self.version = version
        self.description = description
        self.policy: NetworkPolicy | None = None
        self._capacities: dict[str, int] = {}
        self._shared: dict[str, list[str]] = {}
        self._caps: dict[str, ServedCap] = {}
        self._feeds: list[LiveFeed] = []
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
        `AsyncRequest`, run as a task under trio; a cartridge may have both. It writes its answer and returns None: a
        value that it returned would be lost, and is refused. `capacity` bounds the requests of this cap that run at
        once (0: no bound); more wait in order, and their callers are told.

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

    def feed(self, media_urn: str) -> Callable[[AnyFeed], AnyFeed]:
        """Decorate what opens a live feed: a generator, plain or async, of one `Selector`, that yields the items.

            @cartridge.feed("media:frame;live;camera")
            def camera(selector: Selector) -> Iterator[FeedItem]:
                with open_camera(selector.device or 0) as device:
                    for frame in device:
                        yield FeedItem(frame.data, pts_us=frame.time)

        A request whose argument stream has a media URN with the tag `live` sends no data but a selector. The feed that
        the URN satisfies is opened, and the handler reads its items as that argument, each with meta `seq`, `pts_us`
        (since the feed opened), `capture_ts_us` (since 1970) and, where items were lost, `gap`: `dropped` and
        `duration_us`. The generator is closed when the selector's limits are reached, on CLOSE_STREAM and when the
        request ends; it may raise CartridgeError for a device or params it does not know.

        Raises ConfigError for a URN that is no media URN, lacks the tag or is registered already.
        """
        try:
            media = MediaUrn.parse(media_urn)
        except UrnError as error:
            raise ConfigError(f"feed {media_urn!r} is not a media URN: {error}") from None
        if LIVE not in media.tags:
            raise ConfigError(f"feed {media_urn!r} needs the tag `{LIVE}`, as in 'media:frame;{LIVE}'")
        if any(feed.media == media for feed in self._feeds):
            raise ConfigError(f"feed {media_urn!r} is registered twice: one source a feed")

        def register(opener: AnyFeed) -> AnyFeed:
            flags = _code_flags(opener)
            if not callable(opener) or flags & _COROUTINE:
                raise ConfigError(f"feed {media_urn!r}: the source must be a generator of one selector, not {opener!r}")
            _check_takes_one(
                f"feed {media_urn!r}: the source must be a generator of one argument, the selector", opener
            )
            self._feeds.append(LiveFeed(media, opener, bool(flags & _ASYNC_GENERATOR)))
            return opener

        return register

    def require_network(self, *, telemetry: bool = False) -> None:
        """Check the host's network policy, before each use of the network: it may change while a request runs.

        Any third party needs `no_telemetry` or `full`, sending usage data needs `full`. Raises CartridgeError
        NETWORK_POLICY / user where that is not allowed, NETWORK_POLICY_UNSET / internal before the host has said.
        """
        policy = self.policy
        if policy is None:
            raise CartridgeError("NETWORK_POLICY_UNSET", "the host has sent no network policy yet")
        allowed = (NetworkPolicy.FULL,) if telemetry else (NetworkPolicy.FULL, NetworkPolicy.NO_TELEMETRY)
        if policy not in allowed:
            wanted = " or ".join(allowed)
            message = f"the network policy is {policy}: this needs {wanted}, which whoever runs the host can set"
            raise CartridgeError("NETWORK_POLICY", message, AttributionClass.USER, {"seen": str(policy)})

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
        from ._admission import Admission

        if sys.platform == "win32":
            from ._threaded import ThreadedRuntime as Runtime
        else:
            from ._runtime import Runtime
        manifest = json.dumps(self.manifest(), separators=(",", ":")).encode()
        _ = self.settings
        admission = Admission(list(self._caps), self._shared, self._capacities)
        return Runtime(list(self._caps.values()), self._feeds, admission, manifest, descriptors, self._set_policy).run()

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
    flags = _code_flags(handler)
    if flags & (_GENERATOR | _ASYNC_GENERATOR):
        raise ConfigError(f"{where}: the handler must not yield: answer with request.output")
    _check_takes_one(f"{where}: the handler must be a function of one argument, the request", handler)
    return bool(flags & _COROUTINE)


def _check_takes_one(rule: str, function: Any) -> None:
    """Raise ConfigError with the rule for a function that cannot be called with one argument."""
    code = getattr(function, "__code__", None)
    if code is not None and code.co_argcount == 1 and not code.co_kwonlyargcount and not hasattr(function, "__self__"):
        return  # as nearly all are: `inspect` would cost each cold start more than the whole declaration
    from inspect import signature

    try:
        signature(function, follow_wrapped=False).bind(None)
    except TypeError as error:
        raise ConfigError(f"{rule}; {function!r} cannot be called so: {error}") from None
    except ValueError:  # a function of C tells nothing
        pass


def _code_flags(function: Any) -> int:
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return int(getattr(code, "co_flags", 0))


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
