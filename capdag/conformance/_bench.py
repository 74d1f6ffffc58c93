"""What a case works with: sessions of the cartridge, and the steps that many cases share."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

import trio

from capdag.errors import AttributionClass
from capdag.wire import DEFAULT_LIMITS, USER_CANCEL, FrameType, FrameView, Limits, MessageId, encode_value, is_success

from ._caps import Roles, choose, read_served
from ._case import Breach, BreachError, CaseFailed, CaseSkipped
from ._exchange import Exchange, show
from ._launch import Said, Starter
from ._session import Session, payloads_of
from ._settings import Settings

SMALL = 1024
"""Bytes of one CHUNK where a case wants many of them."""

_PROBE = b"\x00\xff Is this an echo?"


class Bench:
    """One run of the kit over one cartridge. `breaches` holds the rules that were seen broken, by whichever case."""

    def __init__(self, starter: Starter, settings: Settings, nursery: trio.Nursery) -> None:
        self.settings = settings
        self.breaches: list[Breach] = []
        self.came: Counter[FrameType] = Counter()
        """The frames that have come so far."""
        self.works = False
        """The worker did its work in ordinary conversation."""
        self.item_size = 1
        """Bytes of the longest CHUNK that the worker answers with when there is room."""
        self._starter = starter
        self._nursery = nursery
        self._shared: dict[Limits, Session] = {}
        self._roles: Roles | None = None
        self._mute: Breach | None = None
        self._echo_tried = False
        self._talked = False
        self._talk_failed = ""

    # Sessions

    @asynccontextmanager
    async def start(self, limits: Limits = DEFAULT_LIMITS) -> AsyncIterator[Session]:
        """Start the cartridge and say nothing to it. Raises SpawnError."""
        self._check_speech()
        session = self._new(limits)
        await self._nursery.start(session.keep)
        try:
            yield session
        finally:
            await session.end()

    @asynccontextmanager
    async def session(self, limits: Limits = DEFAULT_LIMITS, *, policy: bool = True) -> AsyncIterator[Session]:
        """Start the cartridge for one case alone, and shake hands."""
        async with self.start(limits) as session:
            await self._shake_hands(session, policy=policy)
            yield session

    async def shared(self, limits: Limits = DEFAULT_LIMITS) -> Session:
        """Return the session that cases of these limits share; a new one if the former has been spoiled."""
        session = self._shared.get(limits)
        if session is not None and not session.clean:
            await self._shared.pop(limits).end()
            session = None
        while session is None:
            untried = not self._echo_tried
            session = await self._begin(limits)
            if untried and not session.clean:  # the echo broke a rule when it was tried: the next is not to feel it
                await session.end()
                session = None
        self._shared[limits] = session
        return session

    def _new(self, limits: Limits) -> Session:
        return Session(self._starter.start, self.settings, limits, self.breaches.append, self.came)

    async def _begin(self, limits: Limits) -> Session:
        self._check_speech()
        session = self._new(limits)
        await self._nursery.start(session.keep)
        shaken = False
        try:
            await self._shake_hands(session)
            shaken = True
        finally:
            if not shaken:
                await session.end()
        return session

    async def end(self) -> None:
        """End the sessions that were shared."""
        while self._shared:
            await self._shared.popitem()[1].end()

    def _check_speech(self) -> None:
        """Raise what went wrong with a former handshake: it would go wrong each time, and take its time."""
        if self._mute is not None:
            raise BreachError(self._mute)

    async def _shake_hands(self, session: Session, *, policy: bool = True) -> None:
        try:
            await session.shake_hands(policy=policy)
        except CaseFailed as error:
            if self._roles is not None:  # it went well before: it is about these limits
                raise CaseFailed(f"the handshake fails with {session.offered}: {error}") from None
            self._mute = session.watch.note("hello", str(error))
            raise BreachError(self._mute) from None
        except BreachError as error:
            self._mute = None if self._roles is not None else error.breach
            raise
        if self._roles is None and session.hello is not None:
            self._roles = choose(read_served(session.hello.manifest), self.settings)
        if policy and not self._echo_tried:
            self._echo_tried = True
            await self._try_echo(session)

    async def _try_echo(self, session: Session) -> None:
        """Leave data to the identity cap where a cap that looks like an echo gives something else, or wants something
        else. One that fails in another way stays: the cases tell how."""
        exchange = self.ask(session)
        try:
            await session.give(exchange, self.roles.echo.media, payloads_of(_PROBE, session.limits.max_chunk))
            terminal = await session.ended(exchange)
        except (CaseFailed, BreachError):
            return
        if terminal.type is FrameType.END:
            is_other = exchange.data != _PROBE
        else:
            is_other = _refuses(terminal) or exchange.rid in session.watch.called_for
        if is_other:
            self._roles = self.roles.with_identity()

    async def say(self, argument: str) -> Said:
        """Start the cartridge as a person does, with an argument, and return what it says."""
        return await self._starter.say(argument)

    @property
    def roles(self) -> Roles:
        """Which cap serves for what. There must have been a session."""
        assert self._roles is not None
        return self._roles

    @property
    def carrier(self) -> str:
        """The cap that carries data; nothing if there was no session."""
        return "nothing" if self._roles is None else self._roles.echo.text

    # Steps

    async def echo(
        self, session: Session, data: bytes, size: int = SMALL, *, blame: Mapping[str, str] = MappingProxyType({})
    ) -> Exchange:
        """Have bytes given back, sent in CHUNKs of `size` at most, and check that they are."""
        exchange = self.ask(session)
        exchange.blame.update(blame)
        size = min(size, session.limits.max_chunk)
        await session.give(exchange, self.roles.echo.media, payloads_of(data, size))
        await self.succeeded(session, exchange)
        if exchange.data != data:
            raise CaseFailed(f"{len(data)} bytes went in and {len(exchange.data)} others came back")
        return exchange

    def ask(self, session: Session) -> Exchange:
        """Begin a request to the echo."""
        return session.begin(self.roles.echo.text, self.roles.echo.rules())

    def ask_as(self, session: Session, rid: MessageId, xid: MessageId) -> Exchange:
        """Begin a request to the echo under ids of the case's own."""
        return session.begin(self.roles.echo.text, self.roles.echo.rules(), rid=rid, xid=xid)

    def open(self, session: Session) -> Exchange:
        """Begin a request to the echo and open its argument: it is live until the body ends."""
        exchange = self.ask(session)
        session.open(exchange, self.roles.echo.media)
        return exchange

    async def complete(self, session: Session, exchange: Exchange) -> None:
        """Give a request that `open` has begun a small argument, and wait for its success."""
        await session.write(exchange, 0, encode_value(b"done"))
        session.close(exchange, 1)
        session.finish(exchange)
        await self.succeeded(session, exchange)

    def hold(self, session: Session) -> Exchange:
        """Begin a request that takes a place in a pool until `release`. A case is skipped if no cap is fit for it."""
        holder = self.roles.holder
        if holder is None:
            raise CaseSkipped("no cap but identity takes a single argument")
        exchange = session.begin(holder.text, holder.rules())
        session.open(exchange, holder.media)
        return exchange

    async def release(self, session: Session, exchange: Exchange) -> None:
        """End a request that holds a place: well if it is the echo's, else by CANCEL."""
        if self.roles.holder is self.roles.echo:
            await self.complete(session, exchange)
        else:
            session.cancel(exchange, USER_CANCEL)
            await session.ended(exchange)

    async def succeeded(self, session: Session, exchange: Exchange) -> None:
        """Wait for an END that says success."""
        terminal = await session.ended(exchange)
        if not _succeeds(terminal):
            raise CaseFailed(f"the request ended with {show(terminal)}")

    async def work(self, session: Session, *, grants: bool = True) -> Exchange:
        """Have the worker do what it is for, whole; a case is skipped if there is none, or it wants another input."""
        worker = self.roles.worker
        if worker is None:
            raise CaseSkipped("no cap gives a list, and none is named: name one with --cap, and its --input")
        if worker.is_fed and len(self.roles.worker_input) > session.limits.max_chunk * session.limits.initial_credit:
            raise CaseSkipped("the selector of the live feed does not fit a first window of these limits")
        exchange = session.begin(worker.text, worker.rules())
        exchange.grants = grants
        if worker.urn.in_media.is_void:
            session.finish(exchange)
        else:
            await session.give(exchange, worker.media, payloads_of(self.roles.worker_input, session.limits.max_chunk))
        return exchange

    async def need_worker(self) -> None:
        """Skip the case if the worker does not work at all: another case tells that."""
        await self.talk()
        if self.roles.worker is not None and not self.works:
            raise CaseSkipped("the worker fails at once: see the case worker")

    async def worked(self, session: Session, exchange: Exchange) -> None:
        """Wait for the worker's success."""
        terminal = await session.ended(exchange)
        if _refuses(terminal):
            raise CaseSkipped(f"the cap refuses what the kit gives it: {show(terminal)}; say --cap and --input")
        called = session.watch.called_for.get(exchange.rid)
        if called is not None and not _succeeds(terminal):
            raise CaseSkipped(f"the cap calls {called}, and needs another answer than an echo's: {show(terminal)}")
        await self.succeeded(session, exchange)

    async def refused(
        self, session: Session, exchange: Exchange, code: str, attribution: AttributionClass | None = None
    ) -> None:
        """Wait for the ERR that refuses a request, and see the cartridge live on."""
        terminal = await session.ended(exchange, f"ERR {code}")
        check_err(terminal, code, attribution)
        await session.lives_on()

    async def cancelled(self, session: Session, exchange: Exchange, code: str, attribution: AttributionClass) -> None:
        """Wait for the terminal of a request that was cancelled: ERR with the reason, or END if that won the race."""
        terminal = await session.ended(exchange, "the terminal of a cancelled request")
        if terminal.type is FrameType.ERR or not is_success(terminal.meta):
            check_err(terminal, code, attribution)

    async def talk(self) -> Session:
        """Make ordinary conversation, once a run: what is only watched is watched in it. Returns a shared session."""
        if not self._talked:
            self._talked = True
            try:
                await self._make_talk(await self.shared())
            except CaseFailed as error:
                self._talk_failed = str(error)
            except BreachError:  # which is noted, and told by its own case
                pass
        if self._talk_failed:
            raise CaseSkipped(f"an ordinary request fails: {self._talk_failed}")
        return await self.shared()

    async def _make_talk(self, session: Session) -> None:
        await self.echo(session, bytes(range(256)) * 20)
        nobody = session.begin("cap:in=media:void;nobody-serves-this;out=media:void")
        await session.ended(nobody)
        if self.roles.worker is not None:
            worked = await self.work(session)
            terminal = await session.ended(worked)
            self.works = _succeeds(terminal)
            self.item_size = max((view.payload_size for view in worked.views), default=1)
        await session.settle()
        await session.lives_on()


def _succeeds(terminal: FrameView) -> bool:
    return terminal.type is FrameType.END and is_success(terminal.meta)


def _refuses(terminal: FrameView) -> bool:
    """True if the cap says that what it was given is wrong."""
    return terminal.type is FrameType.ERR and terminal.meta.get("attribution_class") == AttributionClass.INPUT


def check_err(terminal: FrameView, code: str, attribution: AttributionClass | None = None) -> None:
    """Hold a terminal to the ERR that is due. Raises CaseFailed."""
    seen = (terminal.meta.get("code"), terminal.meta.get("attribution_class"))
    if terminal.type is not FrameType.ERR or seen[0] != code or (attribution and seen[1] != attribution):
        due = f"ERR {code}" + (f" / {attribution}" if attribution else "")
        raise CaseFailed(f"{show(terminal)} came where {due} was due")
