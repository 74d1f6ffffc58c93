"""What a table of states is made of (protocol-spec/states.md is drawn from the tables).

`link_life`, `request_life` and `stream_life` hold them. Every table is total: for each event in each state it says what
a receiver does with it and where it stands afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E")


class Verdict(StrEnum):
    """What a receiver does with an event."""

    TAKE = "take"
    """It belongs here."""
    DRAIN = "drain"
    """Its request is being ended: it is counted, its credit given back, and it goes nowhere."""
    COUNT = "count"
    """Nothing waits for it: it is counted, as a straggler or a drop, and goes nowhere."""
    REFUSE = "refuse"
    """It is answered with ERR; nothing else changes."""
    VIOLATE = "violate"
    """Its sender broke the protocol: the link, or the request, is over."""
    ELSEWHERE = "elsewhere"
    """It is no part of this request: its link, or another request of the same id, takes it."""
    WAIT = "wait"
    """It cannot be done now."""


class Cell(NamedTuple, Generic[S]):
    """One entry of a table. `to` is the state it leads to, None if it stays; `why` says what is wrong, if anything, and
    `code` is that of the ERR that refuses it."""

    verdict: Verdict
    to: S | None = None
    why: str = ""
    code: str = ""


Table = Mapping[S, Mapping[E, Cell[S]]]


class Life(Generic[S, E]):
    """Where one thing stands in its table."""

    __slots__ = ("_table", "state")

    def __init__(self, table: Table[S, E], state: S) -> None:
        self._table = table
        self.state = state

    def take(self, event: E) -> Cell[S]:
        """Move by one event; returns the cell that says what it means."""
        cell = self._table[self.state][event]
        if cell.to is not None:
            self.state = cell.to
        return cell


def by_state(states: tuple[S, ...], rows: Mapping[E, tuple[Cell[S], ...]]) -> Table[S, E]:
    """Turn rows, which hold a cell for each state, into a table."""
    columns = zip(*rows.values(), strict=True)
    return {state: dict(zip(rows, column, strict=True)) for state, column in zip(states, columns, strict=True)}


TAKE: Cell[Any] = Cell(Verdict.TAKE)
COUNT: Cell[Any] = Cell(Verdict.COUNT)
"""The commonest cells: nothing moves."""


def refuse(code: str, why: str) -> Cell[Any]:
    """Return the cell of an event that is answered with ERR."""
    return Cell(Verdict.REFUSE, None, why, code)
