"""Hosts come, go and come back: whose link it is, how many may be without proof, what each is told."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from capdag.errors import ConfigError
from capdag.relay import Switch, SwitchSettings, open_switch
from capdag.relay._masters import DEAD_SLOTS
from capdag.transport import local_link_pair
from capdag.wire import FrameType, NetworkPolicy
from tests.relay.masters import ECHO, UPPER, Answer, Caller, LinkKind, Master, connected, ready, until


def states(switch: Switch) -> dict[str, str]:
    return {name: host["state"] for name, host in switch.snapshot()["hosts"].items()}


def reason(switch: Switch, name: str = "m0") -> str:
    text = switch.snapshot()["hosts"][name]["reason"]
    assert isinstance(text, str)
    return text


async def test_a_link_that_never_says_a_word_is_closed(kind: LinkKind, clock: MockClock | None) -> None:
    """S3."""
    async with open_switch(SwitchSettings(notify_timeout=0.2)) as switch, connected(switch, "m0", kind) as master:
        await master.wait_closed()
        assert reason(switch) == "no RELAY_NOTIFY in 0.2 s"
        assert len(switch.alarms) == 0


async def test_a_host_without_caps_may_stay(kind: LinkKind, clock: MockClock | None) -> None:
    """S3: it has said its word."""
    async with open_switch(SwitchSettings(notify_timeout=0.1)) as switch, connected(switch, "m0", kind) as master:
        master.notify()
        await until(lambda: states(switch) == {"m0": "idle"})
        assert len(switch.alarms) == 0


async def test_so_many_links_may_be_without_proof(autojump_clock: MockClock) -> None:
    """S4: one that has proved itself, or has gone, makes room; what the others hold is left alone."""
    async with (
        open_switch(SwitchSettings(max_unproved=2)) as switch,
        connected(switch, "a", "local") as a,
        connected(switch, "b", "local") as b,
    ):
        async with connected(switch, "stranger", "local") as stranger:
            assert stranger.end_reason is not None
            assert stranger.seen == []
            assert states(switch) == {"a": "waiting", "b": "waiting"}
        a.notify(ECHO)
        await a.answer_identity()
        b.link.close()
        async with connected(switch, "c", "local"), connected(switch, "d", "local") as d:
            await d.next(FrameType.POLICY)
            assert states(switch) == {"a": "ready", "b": "dead", "c": "waiting", "d": "waiting"}


async def test_a_host_that_comes_back_takes_its_slot_from_a_link_that_is_half_open(
    kind: LinkKind, clock: MockClock | None
) -> None:
    """S6: when it has proved its identity, and not before."""
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as old:
        caller = Caller()
        request = switch.open_request(ECHO, caller)
        await old.next(FrameType.REQ)
        async with connected(switch, "m0", kind) as new:
            new.notify(UPPER)
            await new.skip_to(FrameType.END)
            assert states(switch) == {"m0": "ready"}
            assert not request.ended
            check = next(view for view in new.seen if view.type is FrameType.CHUNK)
            answer = Answer(check.id, None)
            new.send(answer.start(), answer.chunk(check.fields[6]), answer.stream_end(), answer.end())
            why = (await caller.terminal()).meta
            assert why["code"] == "MASTER_DIED"
            assert "another link has proved to be this host" in why["message"]
            await old.wait_closed()
            assert states(switch) == {"m0": "ready"}
            assert [capability.text for capability in switch.capabilities()][1:] == [UPPER]
            assert switch.health().hosts == {"ready": 1}


async def test_who_claims_a_name_and_proves_nothing_changes_nothing(autojump_clock: MockClock) -> None:
    """S6."""
    settings = SwitchSettings(identity_timeout=3)
    async with open_switch(settings) as switch, ready(switch, "m0", "local", ECHO) as host:
        async with connected(switch, "m0", "local") as claimant:
            claimant.notify(ECHO)
            await claimant.wait_closed()
        assert states(switch) == {"m0": "ready"}
        switch.open_request(ECHO, Caller())
        await host.next(FrameType.REQ)


async def test_a_claimant_inherits_the_slot_of_a_link_that_ends(autojump_clock: MockClock) -> None:
    """S6: the newest of several."""
    async with (
        open_switch() as switch,
        ready(switch, "m0", "local", ECHO) as old,
        connected(switch, "m0", "local"),
        connected(switch, "m0", "local") as newest,
    ):
        assert switch.health().hosts == {"ready": 1, "waiting": 2}
        old.link.close()
        assert states(switch) == {"m0": "waiting"}
        newest.notify(UPPER)
        await newest.answer_identity()
        assert states(switch) == {"m0": "ready"}
        assert switch.health().hosts == {"ready": 1, "waiting": 1}


async def test_a_host_that_is_detached_leaves_nothing(kind: LinkKind, clock: MockClock | None) -> None:
    """S8."""
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        switch.open_request(ECHO, caller)
        switch.detach("m0")
        assert (await caller.terminal()).meta["code"] == "MASTER_DIED"
        await master.wait_closed()
        assert switch.snapshot()["hosts"] == {}
        assert switch.capabilities() == ()
        with pytest.raises(ConfigError, match="no host is named 'm0'; the hosts are: none"):
            switch.detach("m0")


async def test_dead_slots_do_not_pile_up(autojump_clock: MockClock) -> None:
    """S7: hosts that come once under a name of their own are forgotten, the oldest first."""
    async with open_switch() as switch:
        for number in range(DEAD_SLOTS + 3):
            near, far = local_link_pair(f"m{number}")
            far.connect(Master(far, f"m{number}"))
            near.connect(switch.attach(near, f"m{number}"))
            far.close()
        assert list(states(switch)) == [f"m{number}" for number in range(3, DEAD_SLOTS + 3)]


async def test_a_dead_slot_tells_nothing_that_runs_and_is_forgotten_after_the_grace(autojump_clock: MockClock) -> None:
    """S7."""
    async with open_switch(SwitchSettings(outage_grace=30)) as switch:
        async with ready(switch, "m0", "local", ECHO):
            assert switch.snapshot()["hosts"]["m0"]["installed_cartridges"][-1]["runtime_stats"]
        (record,) = switch.snapshot()["hosts"]["m0"]["installed_cartridges"]
        assert record["runtime_stats"] == {}
        await trio.sleep(29)
        assert states(switch) == {"m0": "dead"}
        await trio.sleep(2)
        assert states(switch) == {}


async def test_a_new_policy_goes_to_every_host(kind: LinkKind, clock: MockClock | None) -> None:
    """S2: to those that have proved nothing yet, and to those that come later, too."""
    async with (
        open_switch() as switch,
        ready(switch, "a", kind, ECHO) as a,
        connected(switch, "b", kind) as b,
    ):
        assert (await b.next(FrameType.POLICY)).meta == {"network": "no_telemetry"}
        switch.set_policy(NetworkPolicy.OFFLINE)
        for master in (a, b):
            assert (await master.next(FrameType.POLICY)).meta == {"network": "offline"}
        async with connected(switch, "c", kind) as c:
            assert (await c.next(FrameType.POLICY)).meta == {"network": "offline"}


async def test_the_caps_of_all_hosts_are_told_together(autojump_clock: MockClock) -> None:
    """S13."""
    async with (
        open_switch() as switch,
        ready(switch, "a", "local", ECHO),
        ready(switch, "b", "local", ECHO, UPPER) as b,
    ):
        assert switch.snapshot()["caps"] == {"cap:effect=none": ["a", "b"], ECHO: ["a", "b"], UPPER: ["b"]}
        b.notify(UPPER)
        assert switch.snapshot()["caps"] == {"cap:effect=none": ["a", "b"], ECHO: ["a"], UPPER: ["b"]}
