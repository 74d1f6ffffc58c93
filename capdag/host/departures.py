"""What follows the end of a session: its requests; a pause, the next start or none (protocol-spec/host.md, Death)."""

from __future__ import annotations

from collections.abc import Callable

from capdag.errors import AttributionClass
from capdag.wire import Failure

from .cartridge import Cartridge
from .deaths import ProcessEnd
from .endings import Endings
from .exchange import Exchange, log
from .lifecycle import STARTABLE, Event, State
from .roster import Roster
from .session import Session


class Departures:
    """Settles sessions that are over. `unusable` says why a cartridge in a pause takes no request."""

    def __init__(
        self, exchange: Exchange, endings: Endings, roster: Roster, unusable: Callable[[Cartridge], Failure]
    ) -> None:
        self._x = exchange
        self._endings = endings
        self._roster = roster
        self._unusable = unusable

    def settle(self, session: Session, end: ProcessEnd) -> None:
        """End what a session held, and start the next one if requests wait for it."""
        x, cartridge = self._x, session.cartridge
        was_ready = cartridge.port is session
        cartridge.port, cartridge.pid, cartridge.heartbeat = None, None, None
        cartridge.last_exit = end.status
        if was_ready:
            cartridge.move(Event.GONE)
            self._settle_death(session, end)
        elif cartridge.state is State.STOPPING:
            cartridge.move(Event.GONE)
        else:
            self._settle_failed_start(session, end)
        x.advertise = True
        if cartridge.is_leaving:
            self._endings.settle_waiting(cartridge, _gone_for_good(cartridge))
            self._roster.drop(cartridge)
        elif cartridge.waiting and cartridge.state in STARTABLE and x.closing is None:
            if cartridge.not_before > x.clock():
                self._endings.settle_waiting(cartridge, self._unusable(cartridge))
            else:
                x.start(cartridge)

    def _settle_death(self, session: Session, end: ProcessEnd) -> None:
        cartridge, failure = session.cartridge, end.death()
        settled = self._endings.settle_death(cartridge, failure)
        cartridge.rest()
        if not settled and (session.was_stopped or self._x.closing is not None):
            log.info("cartridge %r was stopped: it %s", cartridge.id, end.status)
            if cartridge.resting:
                cartridge.last_exit = None
            return
        cartridge.resting = False
        if end.is_crash:
            cartridge.crashes += 1
            self._pause(cartridge, cartridge.crashes - 1)  # the first is no habit
        self._tell(cartridge, failure, settled)

    def _settle_failed_start(self, session: Session, end: ProcessEnd) -> None:
        cartridge = session.cartridge
        failure = end.failed_start(session.refusal, session.waited)
        if session.refusal is not None:
            cartridge.move(Event.REFUSED)
        else:
            cartridge.move(Event.GONE)
            cartridge.failed_starts += 1
            self._pause(cartridge, cartridge.failed_starts)
        self._tell(cartridge, failure, self._endings.settle_waiting(cartridge, failure))

    def _pause(self, cartridge: Cartridge, failures: int) -> None:
        if failures:
            cartridge.not_before = self._x.clock() + self._x.settings.pause_after(failures)

    def _tell(self, cartridge: Cartridge, failure: Failure, settled: int) -> None:
        cartridge.trouble, cartridge.trouble_at_unix = failure, self._x.wall_clock()
        stderr = (failure.detail or {}).get("stderr")
        tail = f"; the last lines of its stderr:\n{stderr}" if stderr else ""
        log.error("%s: %s (%d requests ended by it)%s", failure.code, failure.message, settled, tail)


def _gone_for_good(cartridge: Cartridge) -> Failure:
    """Return what requests end with that waited for a process which is not started any more."""
    text = f"cartridge {cartridge.id!r} left the roster before it was given the request"
    return Failure("CARTRIDGE_RETIRED", AttributionClass.ENVIRONMENT, text)
