"""Every case in every role: `protocol-spec/interop.md` has the same matrix, and the faults by number."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import trio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from tests.interop.bench import ROLES, Bench, open_bench
from tests.interop.cases import CASES, FAULTS
from tests.interop.engines import HERE
from tests.leaks import assert_no_leaks

LIMIT = 60.0
"""Seconds for one case, on a machine that has much else to do."""

Running = tuple[BlockingPortal, Bench]


@pytest.fixture(autouse=True)
def _no_leaks() -> None:
    """What a case restarts lives on with its bench, whose end is checked instead."""


@pytest.fixture(scope="module")
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, peer_environment: None
) -> Iterator[Running]:
    """Run a role for all its cases: the package takes a second to start anything."""
    folder = tmp_path_factory.mktemp("bench")
    with (
        assert_no_leaks(),
        start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(open_bench(request.param, folder)) as bench,
    ):
        yield portal, bench


async def _in_time(bench: Bench, role: str, case: str) -> None:
    with trio.fail_after(LIMIT):
        await CASES[case](bench, FAULTS.get((role, case), ()))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("running", ROLES, indirect=True, scope="module")
def test_cell(running: Running, case: str) -> None:
    portal, bench = running
    portal.call(_in_time, bench, bench.role.letter, case)


def test_page_has_the_matrix() -> None:
    page = (HERE.parents[1] / "protocol-spec" / "interop.md").read_text()
    found: dict[tuple[str, str], str] = {}
    for line in page.splitlines():
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if first in CASES:
            found |= {(role, first): cell for role, cell in zip(ROLES, cells, strict=True)}
    told = {(role, case): " ".join(["passes", *FAULTS.get((role, case), ())]) for case in CASES for role in ROLES}
    assert found == told
    described = re.findall(r"^\*\*(P\d+)\.", page, re.MULTILINE)
    assert described == [f"P{number}" for number in range(1, len(described) + 1)]
    assert {fault for faults in FAULTS.values() for fault in faults} <= {*described}
