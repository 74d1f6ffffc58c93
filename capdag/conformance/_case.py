"""What a case is, and how it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ._bench import Bench


class Verdict(StrEnum):
    """How a case ended."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    SKIP = "skip"
    """It could not be tried: the cartridge has nothing to try it with, or breaks a rule that another case is for."""


Run = Callable[["Bench"], Awaitable[None]]


class Case(NamedTuple):
    """One thing that a cartridge must do. `title` says what is right, `law` where that is written (protocol-spec),
    `remedy` what the author of a cartridge that fails has to do."""

    id: str
    title: str
    law: str
    remedy: str
    run: Run

    def __str__(self) -> str:
        return self.id


class Breach(NamedTuple):
    """A rule that a frame broke, seen by whoever watched: the case that is about this rule, and what was seen."""

    case: str
    seen: str


class CaseFailed(Exception):  # noqa: N818 - an outcome
    """The cartridge did something else than the case's title says. The text is what was seen."""


class CaseSkipped(Exception):  # noqa: N818 - an outcome
    """The case cannot be tried on this cartridge. The text says why."""


class BreachError(Exception):
    """What a case waited for cannot come any more, because the cartridge broke a rule of another case, perhaps."""

    def __init__(self, breach: Breach) -> None:
        super().__init__(breach.seen)
        self.breach = breach


def case(name: str, title: str, law: str, *, remedy: str) -> Callable[[Run], Case]:
    """Decorate the function that tries a case: returns when the cartridge does right, raises one of the above else."""

    def made(run: Run) -> Case:
        return Case(name, title, law, remedy, run)

    return made
