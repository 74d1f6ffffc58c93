"""Cartridges that are right in unusual ways pass; what is wrong is told once, where it belongs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from capdag.conformance import CASES, Report, Settings, Verdict, as_text, choose_cases
from capdag.errors import AttributionClass
from capdag.wire import (
    IDENTITY_CAP,
    Failure,
    Frame,
    FrameType,
    FrameView,
    Limits,
    PoolState,
    body_end_frame,
    decode_value,
    encode_value,
    fnv1a_64,
)
from capdag.wire.limits import LEAST_LIMITS
from tests.conformance.inprocess import check_plain
from tests.conformance.mutants import MUTANTS
from tests.conformance.plain import COUNT, ECHO, Plain, Served, cap_object


def verdicts(report: Report, verdict: Verdict) -> list[str]:
    return [result.case.id for result in report.of(verdict)]


@pytest.mark.parametrize(
    "limits", [LEAST_LIMITS, Limits(20_000, 262_144, 64, 3), Limits(1 << 24, LEAST_LIMITS.max_chunk, 64, 60)]
)
def test_a_cartridge_may_have_small_limits_of_its_own(limits: Limits) -> None:
    class Small(Plain):
        own_limits = limits

    report = check_plain(Small)
    assert report.passed, as_text(report)


def test_limits_that_no_host_takes_are_told() -> None:
    class Tiny(Plain):
        own_limits = LEAST_LIMITS._replace(max_chunk=LEAST_LIMITS.max_chunk - 1)

    (hello,) = [result for result in check_plain(Tiny).results if result.case.id == "hello"]
    assert hello.verdict is Verdict.FAIL
    assert "HELLO says max_chunk 1023, and a cartridge must take at least 1024" in hello.seen


class Turns(Plain):
    """Its echo has the shape of one, and gives everything back turned round."""

    def echo(self, served: Served) -> None:
        self.start(served)
        if served.ended and served.data:
            served.data = served.data[::-1]
            super().echo(served)


def test_what_only_looks_like_an_echo_carries_no_data() -> None:
    report = check_plain(Turns)
    assert report.carrier == IDENTITY_CAP
    assert report.passed, as_text(report)


class Calls(Plain):
    """Makes a call for its first request, and answers when that has ended."""

    def begin(self) -> None:
        self.caller: Served | None = None
        self.refused = ""

    def finish(self, served: Served) -> None:
        if served is self.caller and not self.refused:
            return
        if served.cap == ECHO and not self.refused:
            self.caller = served
            meta = {"parent_rid": served.rid}
            self.send(Frame(FrameType.REQ, b"id of that call.", cap=COUNT, payload=b"", meta=meta))
            self.send(Frame(FrameType.END, b"id of that call.", eof=True))
        else:
            super().finish(served)

    def stray(self, view: FrameView) -> None:
        if view.id == b"id of that call." and self.caller:
            self.refused = view.meta["code"]
            self.finish(self.caller)


def test_a_call_is_refused_in_good_order() -> None:
    report = check_plain(Calls)
    assert report["calls"].verdict is Verdict.PASS
    assert report.passed, as_text(report)


class Relays(Plain):
    """Has the work of its echo done by another cap, `callee`, and passes the answer on when it is whole."""

    callee = "cap:in=media:octets;elsewhere;out=media:octets"
    chunk_count = 1

    def begin(self) -> None:
        self.callers: dict[object, Served] = {}

    def finish(self, served: Served) -> None:
        if served.cap != ECHO:
            super().finish(served)
        elif served not in self.callers.values():
            self.call(served)

    def call(self, served: Served) -> None:
        call = b"call" + str(len(self.callers)).zfill(12).encode()
        self.callers[call] = served
        payload = encode_value(b"for another")
        self.send(
            Frame(FrameType.REQ, call, cap=self.callee, payload=b"", meta={"parent_rid": served.rid}),
            Frame(FrameType.STREAM_START, call, stream_id="arg-0", media_urn="media:octets", is_sequence=False),
            Frame(FrameType.CHUNK, call, stream_id="arg-0", payload=payload, chunk_index=0, checksum=fnv1a_64(payload)),
            Frame(FrameType.STREAM_END, call, stream_id="arg-0", chunk_count=self.chunk_count),
            body_end_frame(call),
        )

    def stray(self, view: FrameView) -> None:
        served = self.callers.get(view.id)
        if served is None or served.rid not in self.served:
            return
        if view.type is FrameType.CHUNK:
            assert decode_value(view.fields[6]) == b"for another"
        elif view.type is FrameType.END:
            super().finish(served)
        elif view.type is FrameType.ERR:
            self.fail(served, Failure(view.meta["code"], AttributionClass.ENVIRONMENT, view.meta["message"]))


def test_calls_are_served_as_an_echo() -> None:
    report = check_plain(Relays)
    assert report.carrier == ECHO
    assert report["calls"].verdict is Verdict.PASS
    assert report.passed, as_text(report)


class RelaysMiscounted(Relays):
    chunk_count = 2


def test_the_body_of_a_call_is_held_to_the_rules() -> None:
    report = check_plain(RelaysMiscounted, choose_cases(["worker", "calls"]), Settings(cap=ECHO))
    assert verdicts(report, Verdict.FAIL) == ["calls"]
    assert "ended with chunk_count 2 after 1 CHUNKs" in report["calls"].seen


class RelaysElsewhere(Relays):
    callee = 'cap:elsewhere;in=media:octets;out="media:fmt=json;record"'


def test_what_needs_more_than_an_echo_is_not_blamed() -> None:
    report = check_plain(RelaysElsewhere, settings=Settings(cap=ECHO))
    assert report.passed, as_text(report)
    assert report.carrier == IDENTITY_CAP
    assert report["worker"].seen.startswith(f"the cap calls {RelaysElsewhere.callee}, and needs another answer")
    assert report["less-said"].verdict is Verdict.SKIP


class WantsNumbers(Plain):
    """Counts to numbers and to nothing else."""

    def count_up(self, served: Served) -> None:
        if served.data.isdigit():
            super().count_up(served)
        else:
            self.fail(served, Failure("INVALID_REQUEST", AttributionClass.INPUT, "no number"))


def test_a_worker_that_refuses_its_input_is_not_blamed_for_less_said() -> None:
    report = check_plain(WantsNumbers, choose_cases(["worker", "less-said"]), Settings(cap=COUNT, input=b""))
    assert report.passed, as_text(report)
    assert report["worker"].verdict is Verdict.SKIP


class Probes(Plain):
    """Sends a heartbeat of its own with each answer, and would not go on without the reply."""

    probe = 0
    probes = 4711

    def end(self, served: Served) -> None:
        super().end(served)
        assert not self.probe
        self.probe = self.probes = self.probes + 1
        self.send(Frame(FrameType.HEARTBEAT, self.probe))

    def heartbeat(self, view: FrameView) -> None:
        if view.id == self.probe:
            self.probe = 0
        else:
            super().heartbeat(view)


def test_a_cartridge_s_own_heartbeats_are_answered() -> None:
    report = check_plain(Probes, choose_cases(["answer", "empty", "heartbeat"]))
    assert report.passed, as_text(report)


TICKS = 'cap:in="media:live;ticks";out="media:list;number";plain-ticks'


class Feeds(Plain):
    """Has a live feed where others count: nothing is granted for its selector."""

    def manifest(self) -> dict[str, Any]:
        manifest = super().manifest()
        manifest["cap_groups"][0]["caps"][2] = cap_object(TICKS, is_sequence=True)
        return manifest

    def pools(self) -> dict[str, PoolState]:
        return {TICKS if name == COUNT else name: pool for name, pool in super().pools().items()}

    def sizes_known(self, sizes: dict[str, int]) -> bool:
        return sizes.keys() <= {ECHO}

    def cap_of(self, view: FrameView) -> str | None:
        return COUNT if view.fields[10] == TICKS else super().cap_of(view)

    def count_up(self, served: Served) -> None:
        served.data = str(json.loads(served.data)["stop"]["max_items"]).encode()
        super().count_up(served)

    def pay(self, served: Served) -> None:
        if served.cap != COUNT:
            super().pay(served)


@pytest.mark.parametrize("cap", [None, TICKS])
def test_a_live_feed_grants_nothing_for_its_selector(cap: str | None) -> None:
    report = check_plain(Feeds, settings=Settings(cap=cap))
    assert report.passed, as_text(report)
    assert [report[case].verdict for case in ("worker", "items", "item-meta")] == [Verdict.PASS] * 3, as_text(report)


class FailsIdentity(Plain):
    """Gives the nonce back, and says that it has failed."""

    def end(self, served: Served) -> None:
        super().end(served)
        frame = self.out[-1]
        assert isinstance(frame, Frame)
        if served.cap == IDENTITY_CAP and served.xid is None:
            frame.meta = {"exit_code": 1}


def test_an_identity_that_ends_in_failure_proves_nothing() -> None:
    report = check_plain(FailsIdentity, choose_cases(["identity", "identity-text"]))
    assert verdicts(report, Verdict.FAIL) == ["identity"]
    assert "must have exit_code 0, an integer; it has 1" in report["identity"].seen


class ListsTwice(Plain):
    def manifest(self) -> dict[str, Any]:
        manifest = super().manifest()
        manifest["cap_groups"][0]["caps"].append(cap_object(ECHO))
        return manifest


def test_a_cap_that_is_listed_twice_fails_the_case_of_urns() -> None:
    report = check_plain(ListsTwice)
    assert verdicts(report, Verdict.FAIL) == ["manifest-urns"], as_text(report)
    assert "is listed 2 times" in report["manifest-urns"].seen


class OnlyCounts(Plain):
    """Serves nothing that gives bytes back, but identity."""

    def manifest(self) -> dict[str, Any]:
        manifest = super().manifest()
        del manifest["cap_groups"][0]["caps"][1]
        return manifest


def test_identity_carries_the_data_where_nothing_else_does() -> None:
    report = check_plain(OnlyCounts)
    assert report.carrier == IDENTITY_CAP
    assert report.passed, as_text(report)
    assert verdicts(report, Verdict.SKIP) == ["calls"]


class OnlyIdentity(Plain):
    def manifest(self) -> dict[str, Any]:
        manifest = super().manifest()
        del manifest["cap_groups"][0]["caps"][1:]
        return manifest


def test_a_cartridge_without_caps_is_checked_as_far_as_it_goes() -> None:
    report = check_plain(OnlyIdentity)
    assert report.passed, as_text(report)
    skipped = set(verdicts(report, Verdict.SKIP))
    assert {"early-request", "worker", "queue", "pools-active", "missing-argument", "less-said"} <= skipped


class NeedsAWindow(Plain):
    """Wants a window of two at least."""

    def hello(self) -> None:
        if self.limits.initial_credit < 2:
            self.exit = 1
        else:
            super().hello()


def test_a_handshake_that_fails_with_some_limits_fails_their_case_alone() -> None:
    report = check_plain(NeedsAWindow)
    assert verdicts(report, Verdict.FAIL) == ["window-of-one"]
    assert "the handshake fails with Limits(" in report["window-of-one"].seen
    assert "exited with status 1" in report["window-of-one"].seen


def test_a_broken_rule_fails_whatever_was_tried_where_its_own_case_is_not() -> None:
    report = check_plain(MUTANTS["checksum"], choose_cases(["empty", "answer"]))
    assert verdicts(report, Verdict.FAIL) == ["answer"]
    assert "wrong checksum" in report["answer"].seen


def test_what_a_broken_rule_keeps_from_being_tried_is_said() -> None:
    report = check_plain(MUTANTS["checksum"])
    assert report["answer"].verdict is Verdict.SKIP
    assert report["answer"].seen == "the cartridge breaks the rule of the case checksum first"


def test_a_message_tells_what_was_expected_and_what_to_do() -> None:
    result = check_plain(MUTANTS["no-handler"])["no-handler"]
    expected, seen, remedy = result.message.splitlines()
    assert expected == f"expected: {result.case.title}"
    assert "'UNKNOWN_CAP'" in seen
    assert "came where ERR NO_HANDLER / environment was due" in seen
    assert remedy == f"remedy: {result.case.remedy}"
    assert len(seen) < 400


def test_every_case_can_be_tried_alone() -> None:
    reports = [check_plain(Plain, [case]) for case in CASES]
    assert [as_text(report) for report in reports if not report.passed] == []
