from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capdag.urn import CapTable, CapUrn, MediaUrn, Registration, _columns, _table, best_match
from tests.urn.strategies import CAPS, WIDE_CAPS, may_serve, ranked

CHAT = CapUrn.parse("cap:chat")
SMALL = CapUrn.parse("cap:chat;model=small")
LARGE = CapUrn.parse("cap:chat;model=large;vision")


def test_the_nearest_cap_that_is_specific_enough_wins() -> None:
    table: CapTable[str] = CapTable()
    table.register(LARGE, "large")
    table.register(SMALL, "small")
    assert table.best_match("cap:chat") == "small"
    assert table.best_match("cap:chat;vision") == "large"
    assert table.best_match("cap:chat;model=none") is None


def test_between_equals_the_earliest_registered_wins() -> None:
    table: CapTable[str] = CapTable()
    first = table.register(CHAT, "first")
    table.register(CHAT, "second")
    assert table.best_match(CHAT) == "first"
    table.retire(first)
    assert table.best_match(CHAT) == "second"
    table.register(CHAT, "first")
    assert table.best_match(CHAT) == "second"


def test_less_specific_caps_come_last_and_nearest_first() -> None:
    request = 'cap:op;in="media:a=1"'
    caps = ["cap:op", "cap:op;in=media:a", "cap:op;?x;in=media:a", 'cap:op;x;in="media:a=1"']
    assert best_match(caps, request) == 3
    assert best_match(caps[:3], request) == 1
    assert best_match(caps[:1] + caps[2:0:-1], request) == 1


def test_a_look_up_after_a_change_sees_the_change() -> None:
    table: CapTable[str] = CapTable()
    assert table.best_match(CHAT) is None
    handle = table.register(CHAT, "a")
    assert table.best_match(CHAT) == "a"
    table.retire(handle)
    assert table.best_match(CHAT) is None


def test_retiring_twice_is_harmless() -> None:
    table: CapTable[str] = CapTable()
    handle = table.register(CHAT, "a")
    table.retire(handle)
    table.register(CHAT, "b")
    table.retire(handle)
    table.retire_target("a")
    assert [entry.target for entry in table] == ["b"]


def test_a_target_goes_with_all_it_offers() -> None:
    table: CapTable[str] = CapTable()
    for target in ("a", "b"):
        table.register(CHAT, target)
        table.register(SMALL, target)
    table.retire_target("a")
    assert [(str(entry.cap), entry.target) for entry in table] == [("cap:chat", "b"), ("cap:chat;model=small", "b")]
    assert len(table) == 2


def test_an_unusable_target_is_passed_over_each_time_anew() -> None:
    table: CapTable[str] = CapTable()
    table.register(CHAT, "busy")
    table.register(CHAT, "free")
    table.register(SMALL, "small")
    busy = {"busy"}
    assert table.best_match("cap:chat", usable=lambda target: target not in busy) == "free"
    busy.add("free")
    assert table.best_match("cap:chat", usable=lambda target: target not in busy) == "small"
    busy.clear()
    assert table.best_match("cap:chat", usable=lambda target: target not in busy) == "busy"
    assert table.best_match("cap:chat", usable=lambda target: False) is None


def test_usable_may_look_up_the_same_request() -> None:
    table: CapTable[str] = CapTable()
    for target in "abc":
        table.register(CHAT, target)
    asked = []

    def usable(target: str) -> bool:
        asked.append(target)
        assert table.best_match("cap:chat", usable=lambda inner: inner == "c") == "c"
        return target == "c"

    assert table.best_match("cap:chat", usable=usable) == "c"
    assert asked == ["a", "b", "c"]


def test_a_preferred_cap_wins_whatever_its_rank_and_effect() -> None:
    table: CapTable[str] = CapTable()
    table.register(CHAT, "chat")
    table.register(LARGE, "large")
    preferred = "cap:chat;effect=none;model=large;vision"
    assert table.best_match("cap:chat", preferred) == "large"
    assert table.best_match("cap:chat", preferred, usable=lambda target: target != "large") == "chat"


@pytest.mark.parametrize("preferred", ["", "junk", "cap:", "cap:unknown", "cap:chat;model=large"])
def test_a_hint_that_nothing_matches_is_ignored(preferred: str) -> None:
    assert best_match([LARGE, CHAT], "cap:chat", preferred) == 1


@pytest.mark.parametrize("request_text", ["", "junk", "cap:", "media:chat"])
def test_a_request_that_is_no_cap_has_no_target(request_text: str) -> None:
    assert best_match([CHAT], request_text) is None


def test_a_long_request_is_served_too() -> None:
    text = "cap:" + ";".join(f"tag-{number}" for number in range(300))
    table: CapTable[str] = CapTable()
    table.register(CapUrn.parse(text), "a")
    assert table.best_match(text) == table.best_match(text, text) == "a"
    assert table.best_match("cap:tag-7", text) == "a"


@given(
    st.lists(st.one_of(st.tuples(CAPS, st.integers(0, 3)), st.integers(0, 30)), max_size=25),
    st.lists(CAPS, min_size=1, max_size=5),
    st.one_of(st.none(), CAPS),
    st.sets(st.integers(0, 3), max_size=2),
    st.sampled_from([0, _table._SPARE]),
    st.sampled_from([0, _table._FEW]),
)
def test_look_ups_agree_with_the_rules_under_any_order_of_changes(
    steps: list[tuple[CapUrn, int] | int],
    requests: list[CapUrn],
    hint: CapUrn | None,
    unusable: set[int],
    spare: int,
    few: int,
) -> None:
    """A pair registers, a number retires the handle of that number (or, past the last one, a whole target).

    With 0 to spare a table closes ranks at every turn; with 0 few it picks even those out of its whole order.
    """
    with mock.patch.object(_table, "_SPARE", spare), mock.patch.object(_table, "_FEW", few):
        check_look_ups(steps, requests, hint, unusable)


def check_look_ups(
    steps: list[tuple[CapUrn, int] | int], requests: list[CapUrn], hint: CapUrn | None, unusable: set[int]
) -> None:
    table: CapTable[int] = CapTable()
    handles: list[Registration[int]] = []
    alive: dict[int, tuple[CapUrn, int]] = {}
    for step in steps:
        if isinstance(step, tuple):
            alive[len(handles)] = step
            handles.append(table.register(*step))
        elif step < len(handles):
            table.retire(handles[step])
            alive.pop(step, None)
        else:
            table.retire_target(step % 4)
            alive = {number: pair for number, pair in alive.items() if pair[1] != step % 4}
        caps = {number: cap for number, (cap, _) in alive.items()}
        assert [(entry.cap, entry.target) for entry in table] == list(alive.values())
        for request in requests:
            order = [alive[number][1] for number in ranked(caps, request, hint)]
            free = [target for target in order if target not in unusable]
            preferred = None if hint is None else str(hint)
            assert [*dict.fromkeys(table.ranking(request, preferred))] == [*dict.fromkeys(order)]
            for _ in range(2):  # the second look-up is answered from the cache
                assert table.best_match(request, preferred) == next(iter(order), None)
                assert table.best_match(str(request), preferred, lambda target: target not in unusable) == next(
                    iter(free), None
                )


@given(st.lists(CAPS, max_size=12), CAPS)
def test_best_match_agrees_with_the_rules(candidates: list[CapUrn], request: CapUrn) -> None:
    order = ranked(dict(enumerate(candidates)), request, None)
    assert best_match(candidates, request) == next(iter(order), None)
    assert best_match(map(str, candidates), str(request)) == next(iter(order), None)


@given(st.lists(WIDE_CAPS, max_size=40), WIDE_CAPS, st.sampled_from([0, _table._FEW]))
def test_all_that_may_serve_are_found_once_in_the_order_of_choice(
    candidates: list[CapUrn], request: CapUrn, few: int
) -> None:
    table: CapTable[int] = CapTable()
    for number, cap in enumerate(candidates):
        table.register(cap, number)
    with mock.patch.object(_table, "_FEW", few):
        assert list(table.ranking(request)) == ranked(dict(enumerate(candidates)), request, None)


STORED = [None, "?", "?=v", "?=w", "*", "!=v", "!=w", "v", "w", "!"]


@pytest.mark.parametrize("axis", ["tags", "in", "out"])
def test_every_form_is_found_by_every_form_that_it_fits(axis: str) -> None:
    def cap(stored: str | None) -> CapUrn:
        asked = {"a": "*"} | ({} if stored is None else {"x": stored})
        tags, taken, given = ({"a": "*"} if axis != name else asked for name in ("tags", "in", "out"))
        return CapUrn(MediaUrn(taken), MediaUrn(given), tags=tags)

    table: CapTable[CapUrn] = CapTable()
    for stored in STORED:
        table.register(cap(stored), cap(stored))
    for request in map(cap, STORED):
        assert set(table.ranking(request)) == {entry.cap for entry in table if may_serve(entry.cap, request)}


def test_a_set_of_places_is_what_was_put_in() -> None:
    places, expected = _columns.Places(), 0
    for place in range(40):
        places.add(place)
        expected |= 1 << place
        assert places.mask == expected
    assert list(_columns.places_in(expected)) == list(range(40))


def test_a_table_that_lives_long_does_not_grow() -> None:
    table: CapTable[int] = CapTable()
    kept = [table.register(CHAT, number) for number in range(5)]
    for _ in range(200):
        table.retire(table.register(CHAT, 7))
        table.retire(kept.pop(0))
        kept.append(table.register(CHAT, kept[-1].target + 1))
    assert table.best_match("cap:chat") == 200
    assert [entry.target for entry in table] == list(range(200, 205))
    assert len(table._rows) <= 2 * len(table) + _table._SPARE
