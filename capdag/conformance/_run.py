"""Runs the cases one after the other and puts what was found where it belongs."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence

import trio

from capdag.errors import CapdagError, ConfigError
from capdag.transport import SpawnError, new_run_id, open_guardian

from ._bench import Bench
from ._case import Breach, BreachError, Case, CaseFailed, CaseSkipped, Verdict
from ._launch import Command, Starter
from ._report import Report, Result
from ._settings import Settings
from .cases import CASES

Heard = Callable[[Case], None]


def check(
    command: Sequence[str], settings: Settings | None = None, *, only: Collection[str] = (), skip: Collection[str] = (),
) -> Report:  # fmt: skip
    """Run a cartridge through the cases, all of them unless `only` names some, and return what was found.

    Starts its own trio run: not for use inside one, where `run_cases` is. Raises SpawnError if the command cannot be
    started, ConfigError for a case that there is not or a cap that the cartridge has not.
    """
    return trio.run(run_command, command, settings or Settings(), choose_cases(only, skip))


def choose_cases(only: Collection[str] = (), skip: Collection[str] = ()) -> list[Case]:
    """Return the cases that are asked for, in their own order. Raises ConfigError for an id that none has."""
    known = [case.id for case in CASES]
    for name in (*only, *skip):
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f": did you mean {near[0]!r}?" if near else "; --list shows them"
            raise ConfigError(f"there is no case {name!r}{hint}")
    return [case for case in CASES if (not only or case.id in only) and case.id not in skip]


async def run_command(
    command: Sequence[str], settings: Settings, cases: Sequence[Case] = CASES, heard: Heard | None = None
) -> Report:
    """`check` inside a trio run. `heard` is told of each case as it begins. Cancelling ends the cartridge, and leaves
    nothing of it."""
    async with open_guardian(new_run_id()) as guardian:
        return await run_cases(Command(command, settings, guardian), command, settings, cases, heard)


async def run_cases(
    starter: Starter, command: Sequence[str], settings: Settings, cases: Sequence[Case] = CASES,
    heard: Heard | None = None,
) -> Report:  # fmt: skip
    """Run the cases over what `starter` starts; `command` is what the report says of it."""
    begun = trio.current_time()
    results: list[Result] = []
    try:
        async with trio.open_nursery() as nursery:
            bench = Bench(starter, settings, nursery)
            for case in cases:
                if heard is not None:
                    heard(case)
                results.append(await _try(case, bench, {one.id for one in cases}))
            await bench.end()
    except BaseExceptionGroup as group:
        if isinstance(expected := _leaf(group), CapdagError):
            raise expected from None
        raise
    return Report(command, bench.carrier, _settled(results, bench.breaches), trio.current_time() - begun)


async def _try(case: Case, bench: Bench, chosen: Collection[str]) -> Result:
    begun = trio.current_time()
    try:
        await case.run(bench)
        verdict, seen = Verdict.PASS, ""
    except (CaseFailed, CaseSkipped, BreachError, SpawnError, ConfigError, BaseExceptionGroup) as error:
        verdict, seen = _judge(_leaf(error), case, chosen)
    return Result(case, verdict, seen, trio.current_time() - begun)


def _leaf(error: BaseException) -> BaseException:
    """Return what a group is about: a case that runs tasks fails with the first of their errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _judge(error: BaseException, case: Case, chosen: Collection[str]) -> tuple[Verdict, str]:
    """Say what an error means for a case. Raises it if it means that nothing can be checked, or a fault of the kit."""
    if isinstance(error, CaseFailed):
        return Verdict.FAIL, str(error)
    if isinstance(error, CaseSkipped):
        return Verdict.SKIP, str(error)
    if not isinstance(error, BreachError):
        raise error
    owner = error.breach.case
    if owner == case.id or owner not in chosen:
        return Verdict.FAIL, error.breach.seen
    return Verdict.SKIP, f"the cartridge breaks the rule of the case {owner} first"


def _settled(results: Sequence[Result], breaches: Sequence[Breach]) -> list[Result]:
    """Let every rule that was seen broken fail the case that is about it."""
    seen: dict[str, str] = {}
    for breach in breaches:
        seen.setdefault(breach.case, breach.seen)
    return [
        result._replace(verdict=Verdict.FAIL, seen=seen[result.case.id])
        if result.case.id in seen and result.verdict is not Verdict.FAIL
        else result
        for result in results
    ]
