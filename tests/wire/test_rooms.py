"""Rooms that route by tables of their own refuse what the tables of the wire refuse, and nothing else."""

from __future__ import annotations

from typing import Any

from capdag.client._call import _TAKE, Call
from capdag.host.cartridge_side import CartridgeSide
from capdag.host.relay_side import RelaySide
from capdag.wire import FrameType
from capdag.wire.life import Verdict
from capdag.wire.link_life import LINK_LIFE, Direction, LinkEvent, LinkState
from capdag.wire.request_life import REQUEST_LIFE, RequestState, Side


class _Nothing:
    """Stands for parts that a routing table is built with and that are not asked here."""

    def __getattr__(self, name: str) -> None:
        return None


NOTHING: Any = _Nothing()


def allowed(direction: Direction) -> set[FrameType]:
    row = LINK_LIFE[direction][LinkState.OPEN]
    return {kind for kind in FrameType if row[LinkEvent[kind.name]].verdict is not Verdict.VIOLATE}


def test_a_host_routes_what_a_cartridge_may_send() -> None:
    assert set(CartridgeSide(NOTHING, NOTHING, NOTHING)._routes) == allowed(Direction.CARTRIDGE_TO_HOST)


def test_a_host_routes_what_a_switch_may_send() -> None:
    assert set(RelaySide(NOTHING, NOTHING, (), NOTHING)._routes) == allowed(Direction.SWITCH_TO_HOST)


def test_a_caller_takes_what_a_handler_may_send() -> None:
    row = REQUEST_LIFE[RequestState.BODY]
    taken = {kind for kind, take in _TAKE.items() if take is not Call._take_stranger}
    assert taken == {kind for kind in FrameType if row[Side.HANDLER, kind].verdict is Verdict.TAKE}
