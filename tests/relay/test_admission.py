"""The tables of admission under any order of events: slots, turns, lines (protocol-spec/switch.md, S20 to S29)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from capdag.relay._admission import Admission, QueueFullError, Ticket
from capdag.relay._places import Install, Line, Slot
from capdag.urn import CapUrn
from capdag.wire import IDENTITY_CAP, PoolState

CHAT, WORDS = "cap:chat;out=media:x", "cap:words;out=media:x"
MAX_QUEUED = 5
HOSTS = st.sampled_from(["h0", "h1"])
LINES = st.sampled_from([CHAT, WORDS])
CALLERS = st.sampled_from("abc")
SIZES = st.integers(0, 3)
PICK = st.integers(0, 50)


def sized(**sizes: int) -> dict[str, PoolState]:
    """Return pools; `chat` and `words` stand for the caps, `both` is shared by them."""
    names = {"chat": CHAT, "words": WORDS}
    pools = {names.get(name, name): PoolState(size, size) for name, size in sizes.items()}
    if "both" in pools:
        pools["both"] = pools["both"]._replace(caps=(CHAT, WORDS))
    return pools


def chat_line(*sizes: int, running: bool = True) -> Line[str]:
    """Return a line with hosts h0, h1, …, each with a cartridge that takes so many chats."""
    line: Line[str] = Line(CapUrn.parse(CHAT))
    for number, size in enumerate(sizes):
        install = Install(f"h{number}", "cart")
        install.update(running, sized(chat=size))
        line.put(f"h{number}", install)
    return line


def admitted(admission: Admission[str, str]) -> list[str]:
    """Let everything go that may, and return the requests."""
    return [ticket.request for ticket, _ in admission.admit()]


class AdmissionMachine(RuleBasedStateMachine):
    """Two hosts, two caps, three callers do anything in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.admission: Admission[str, int] = Admission(MAX_QUEUED)
        self.lines = {text: Line[str](CapUrn.parse(text)) for text in (CHAT, WORDS)}
        self.installs = {host: Install(host, "cart") for host in ("h0", "h1")}
        self.held: list[Slot[str]] = []
        self.waiting: list[Ticket[str, int]] = []
        self.overtaken: dict[Ticket[str, int], Counter[str]] = {}
        self.requests = 0

    def _admit(self) -> None:
        """As the switch does after every change."""
        for ticket, slot in self.admission.admit():
            self.waiting.remove(ticket)
            self.held.append(slot)
            self._check_pools(slot)
            self._note_turn(ticket.caller)
            for other in self.waiting:
                if other.caller == ticket.caller:
                    assert other.serial > ticket.serial or not other.line.room()
                    assert other.serial > ticket.serial or other.line is not ticket.line
                elif other.line is ticket.line and self._is_first(other):
                    counts = self.overtaken.setdefault(other, Counter())
                    counts[ticket.caller] += 1
                    assert counts[ticket.caller] <= 1, "a caller had two turns before another had one"

    def _note_turn(self, caller: str) -> None:
        """A turn in any line is a turn."""
        for ticket in [ticket for ticket in self.overtaken if ticket.caller == caller]:
            del self.overtaken[ticket]

    def _is_first(self, ticket: Ticket[str, int]) -> bool:
        return self.admission.waiting[ticket.line][ticket.caller][0] is ticket

    @staticmethod
    def _check_pools(slot: Slot[str]) -> None:
        assert all(pool.active <= pool.size for pool in slot.place.chain)

    @rule(
        host=HOSTS, caps=st.sets(LINES), running=st.booleans(), chat=SIZES, both=SIZES, all_=SIZES, again=st.booleans()
    )
    def offer(self, host: str, caps: set[str], running: bool, chat: int, both: int, all_: int, again: bool) -> None:
        if again:  # the cartridge was installed anew
            self.installs[host] = Install(host, "cart")
        pools = sized(chat=chat, both=both, all=all_)
        self.installs[host].update(running, pools if running else {})
        for text, line in self.lines.items():
            if text in caps:
                line.put(host, self.installs[host])
                self.admission.changed(line)
            elif host in line.places:
                line.drop(host)
        self._admit()

    @rule(text=LINES, caller=CALLERS, preferred=st.sampled_from([None, "h1"]))
    def ask(self, text: str, caller: str, preferred: str | None) -> None:
        line = self.lines[text]
        had_room = line.room()
        slot = self.admission.take(line, caller, preferred)
        assert (slot is None) == (had_room is None)
        if slot is not None:
            self._check_pools(slot)
            self._note_turn(caller)
            self.held.append(slot)
            return
        waits = [ticket for ticket in self.waiting if ticket.line is line]
        counts = Counter(ticket.caller for ticket in waits)
        try:
            loser = self.admission.displaced(line, caller)
        except QueueFullError:
            assert len(waits) >= MAX_QUEUED
            assert counts[caller] + 2 > max(counts.values())
            return
        if loser is not None:
            assert len(waits) >= MAX_QUEUED
            assert counts[loser.caller] == max(counts.values())
            assert loser.serial == max(ticket.serial for ticket in waits if ticket.caller == loser.caller)
            self.waiting.remove(loser)
            self.admission.withdraw(loser)
        self.requests += 1
        self.waiting.append(self.admission.wait(line, caller, preferred, self.requests, 0.0))

    @precondition(lambda self: self.held)
    @rule(pick=PICK)
    def end(self, pick: int) -> None:
        slot = self.held.pop(pick % len(self.held))
        self.admission.release(slot)
        with pytest.raises(KeyError):
            self.admission.release(slot)
        self._admit()

    @precondition(lambda self: self.waiting)
    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        ticket = self.waiting.pop(pick % len(self.waiting))
        self.admission.withdraw(ticket)
        self._admit()

    @precondition(lambda self: self.waiting)
    @rule(pick=PICK)
    def move(self, pick: int) -> None:
        ticket = self.waiting[pick % len(self.waiting)]
        self.overtaken.clear()
        other = next(line for line in self.lines.values() if line is not ticket.line)
        self.admission.move(ticket, other)
        self._admit()

    @invariant()
    def the_pools_hold_what_is_held(self) -> None:
        held = Counter(pool for slot in self.held for pool in slot.place.chain)
        installs = {*self.installs.values(), *(slot.place.install for slot in self.held)}
        for install in installs:
            for pool in install.pools.values():
                assert pool.active == held[pool]

    @invariant()
    def what_is_held_is_the_chain_of_now(self) -> None:
        for slot in self.held:
            place = slot.line.places.get(slot.master)
            if place is not None and place.install is slot.place.install:
                assert slot.place.chain == place.chain == place.install.chain(slot.line.text)

    @invariant()
    def nobody_waits_who_could_go(self) -> None:
        assert all(not ticket.line.room() for ticket in self.waiting)
        assert len(self.admission) == len(self.waiting)

    @invariant()
    def the_order_is_of_everybody(self) -> None:
        for line in self.lines.values():
            order = self.admission.order(line)
            assert set(order) == {ticket for ticket in self.waiting if ticket.line is line}
            assert [self.admission.position(ticket) for ticket in order] == list(range(1, len(order) + 1))

    def teardown(self) -> None:
        for ticket in self.waiting:
            self.admission.withdraw(ticket)
        for slot in self.held:
            self.admission.release(slot)
        assert list(self.admission.admit()) == []
        assert self.admission.waiting == {}
        assert self.admission._callers == {}
        assert all(install.is_idle for install in self.installs.values())


def test_who_asks_again_after_each_answer_has_one_turn_a_round() -> None:
    """S26."""
    admission: Admission[str, str] = Admission(MAX_QUEUED)
    line = Line[str](CapUrn.parse(CHAT))
    install = Install("h0", "cart")
    install.update(True, sized(chat=1))
    line.put("h0", install)
    slot = admission.take(line, "a")
    for number in range(3):
        admission.wait(line, "b", None, f"b{number}", 0.0)
    went = []
    for number in range(4):
        assert slot is not None
        admission.wait(line, "a", None, f"a{number}", 0.0)
        admission.release(slot)
        ((ticket, slot),) = admission.admit()
        went.append(ticket.request)
    assert [request[0] for request in went] in (["b", "a", "b", "a"], ["a", "b", "a", "b"])


AdmissionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestAdmissionMachine = AdmissionMachine.TestCase


def test_the_chain_of_a_cap() -> None:
    """S20: the cap's own pool, the shared ones that hold it in the order of their names, `all`; identity has none."""
    install = Install("h0")
    shared = {name: PoolState(2, 2, caps=(CHAT,)) for name in ("z", "b")}
    install.update(True, {**sized(chat=1, all=9), **shared, "all": PoolState(9, 9, caps=(CHAT, WORDS))})
    by_name = {pool: name for name, pool in install.pools.items()}
    assert [by_name[pool] for pool in install.chain(CHAT)] == [CHAT, "b", "z", "all"]
    assert install.chain(IDENTITY_CAP) == ()
    assert [pool.size for pool in install.chain(WORDS)] == [float("inf"), 9]


def test_sizes_are_the_smaller_of_configured_and_available() -> None:
    """S21: 0, or nothing, is no bound; a cartridge that does not run takes one request."""
    install = Install("h0")
    install.update(True, {"p": PoolState(9, 4, available=2), "q": PoolState(9, 0, available=3), "r": PoolState(9, 0)})
    assert [install.pools[name].size for name in "pqr"] == [2, 3, float("inf")]
    install.update(False, {"p": PoolState(9, 4), "all": PoolState(8, 8)})
    assert {name: pool.size for name, pool in install.pools.items()} == {"p": 4, "all": 1}
    install.update(False, {})
    assert {name: pool.size for name, pool in install.pools.items()} == {"all": 1}


def test_the_first_host_with_room_is_taken_and_a_preferred_one_before_it() -> None:
    """S24."""
    admission: Admission[str, str] = Admission(9)
    line = chat_line(1, 1)
    masters = [admission.take(line, "a", "h1"), admission.take(line, "a", "h1"), admission.take(line, "a", "h1")]
    assert [slot and slot.master for slot in masters] == ["h1", "h0", None]


def test_a_caller_with_one_request_is_served_second() -> None:
    """S26: one slot, twenty requests of one caller, then one of another, though the line is full."""
    admission: Admission[str, str] = Admission(4)
    line = chat_line(1)
    running = admission.take(line, "a")
    assert running is not None
    refused = 0
    for number in range(1, 20):
        try:
            assert admission.displaced(line, "a") is None
        except QueueFullError:
            refused += 1
        else:
            admission.wait(line, "a", None, f"a{number}", 0.0)
    assert refused == 15
    loser = admission.displaced(line, "b")
    assert loser is not None
    assert loser.request == "a4"
    admission.withdraw(loser)
    admission.wait(line, "b", None, "b0", 0.0)
    served = []
    while len(admission):
        admission.release(running)
        ((ticket, running),) = admission.admit()
        served.append(ticket.request)
    assert served == ["b0", "a1", "a2", "a3"]


def test_callers_take_turns() -> None:
    """S26."""
    admission: Admission[str, str] = Admission(99)
    line = chat_line(1)
    running = admission.take(line, "a")
    assert running is not None
    for request in ("a1", "a2", "a3", "b1", "b2", "c1"):
        admission.wait(line, request[0], None, request, 0.0)
    foretold = [ticket.request for ticket in admission.order(line)]
    served = []
    while len(admission):
        admission.release(running)
        ((ticket, running),) = admission.admit()
        served.append(ticket.request)
        assert [ticket.request for ticket in admission.order(line)] == foretold[len(served) :]
    assert served == foretold == ["b1", "c1", "a1", "b2", "a2", "a3"]


def test_callers_that_come_and_go_do_not_starve_one_that_stays() -> None:
    """S26: a hundred callers with one request each, always another one there."""
    admission: Admission[str, str] = Admission(999)
    line = chat_line(1)
    running = admission.take(line, "old")
    assert running is not None
    admission.wait(line, "old", None, "old", 0.0)
    admission.wait(line, "0", None, "0", 0.0)
    served = []
    for number in range(1, 100):
        admission.wait(line, str(number), None, str(number), 0.0)
        admission.release(running)
        ((ticket, running),) = admission.admit()
        served.append(ticket.request)
    assert "old" in served[:4]


def test_a_pool_that_grows_lets_waiters_go_and_one_that_shrinks_waits() -> None:
    """S21, S22."""
    admission: Admission[str, str] = Admission(9)
    line = chat_line(1)
    install = line.places["h0"].install
    slots = [admission.take(line, "a")]
    for number in range(4):
        admission.wait(line, "a", None, f"r{number}", 0.0)
    install.update(True, sized(chat=3))
    line.put("h0", install)
    admission.changed(line)
    assert admitted(admission) == ["r0", "r1"]
    install.update(True, sized(chat=1))
    line.put("h0", install)
    admission.changed(line)
    assert admitted(admission) == []
    assert slots[0] is not None
    admission.release(slots[0])
    assert admitted(admission) == []


def test_a_shared_pool_holds_back_both_caps_and_no_other() -> None:
    """S20, S23: of those that could go the first goes, past one that cannot."""
    admission: Admission[str, str] = Admission(9)
    lines = [Line[str](CapUrn.parse(text)) for text in (CHAT, WORDS)]
    install = Install("h0")
    install.update(True, sized(chat=1, both=2))
    for line in lines:
        line.put("h0", install)
    chat, words = lines
    first, second = admission.take(chat, "a"), admission.take(words, "a")
    assert first is not None
    assert second is not None
    admission.wait(chat, "a", None, "chat", 0.0)
    admission.wait(words, "a", None, "words", 0.0)
    admission.release(second)  # room in `both`, none in chat's own
    assert admitted(admission) == ["words"]
    admission.release(first)
    assert admitted(admission) == ["chat"]


def test_what_runs_counts_in_the_pools_that_a_cartridge_tells_of_later() -> None:
    """S22, S25: the request that started it holds a slot of its shared pool, too."""
    admission: Admission[str, str] = Admission(9)
    line = chat_line(0, running=False)
    install = line.places["h0"].install
    first = admission.take(line, "a")
    assert first is not None
    for number in range(3):
        admission.wait(line, "a", None, f"r{number}", 0.0)
    install.update(True, sized(both=2))
    line.put("h0", install)
    admission.changed(line)
    assert admitted(admission) == ["r0"]
    assert install.pools["both"].active == 2
    admission.release(first)
    assert admitted(admission) == ["r1"]
    install.update(True, sized(chat=2))
    line.put("h0", install)
    install.update(True, sized(chat=2))
    assert "both" not in install.pools
    assert install.pools[CHAT].active == 2
