from __future__ import annotations

import json
from typing import Any

import pytest

from capdag.errors import RemoteProtocolError
from capdag.wire import (
    DEFAULT_LIMITS,
    Frame,
    FrameType,
    IdentityCheck,
    Limits,
    PoolState,
    encode_frame,
    encode_value,
    end_frame,
    fnv1a_64,
    hello_frame,
    identity_request,
    inspect,
    read_cartridge_hello,
    read_hello,
    read_pools,
    view_of,
    write_pools,
)
from capdag.wire.limits import LEAST_LIMITS, check_least
from capdag.wire.manifest import MAX_FACT, MAX_MANIFEST, identity_cap, read_manifest
from capdag.wire.manifest_rules import manifest_faults
from tests.vectors import load, named

# The package takes any JSON for pool counts; ours wants what the contract says. A float or negative count is a fault.
STRICTER_ON_PURPOSE = {"cart_hello_pool_negative", "cart_hello_pool_float"}


@pytest.mark.parametrize("row", load("wire/handshake"), ids=named)
def test_hello_vectors(row: dict[str, Any]) -> None:
    view = inspect(bytes.fromhex(row["hex"]))
    from_cartridge = row["peer_role"] == "host"
    if row["result"] == "ok" and row["name"] not in STRICTER_ON_PURPOSE:
        theirs = read_cartridge_hello(view).limits if from_cartridge else read_hello(view)
        assert DEFAULT_LIMITS.negotiate(theirs)._asdict() == row["limits"]
    else:
        with pytest.raises(RemoteProtocolError):
            read_cartridge_hello(view) if from_cartridge else read_hello(view)


def test_a_first_frame_that_is_no_hello_is_named() -> None:
    with pytest.raises(RemoteProtocolError, match="must be HELLO, not HEARTBEAT"):
        read_hello(view_of(Frame(FrameType.HEARTBEAT, 1)))


def test_hello_round_trip() -> None:
    limits = Limits(70_000, 1_000, 2, 7)
    pools = {"all": PoolState(1, 1, 0, 0, None, ("cap:effect=none",)), "cap:effect=none": PoolState(available=4)}
    hello = read_cartridge_hello(inspect(encode_frame(hello_frame(limits, manifest=b"{}", pools=pools))))
    assert hello == (limits, b"{}", pools)


def answer(nonce: bytes, *, checksum: int | None = None) -> list[Frame]:
    payload = encode_value(nonce)
    return [
        Frame(FrameType.STREAM_START, 1, stream_id="r", media_urn="media:"),
        Frame(
            FrameType.CHUNK, 1, stream_id="r", payload=payload, chunk_index=0, checksum=checksum or fnv1a_64(payload)
        ),
        Frame(FrameType.STREAM_END, 1, stream_id="r", chunk_count=1),
        end_frame(1),
    ]


def ended(**meta: Any) -> list[Frame]:
    """Return a right answer but for the meta of its END."""
    return [*answer(bytes(32))[:3], Frame(FrameType.END, 1, eof=True, meta=meta or None)]


def half(stream: str, nonce: bytes) -> list[Frame]:
    """Return an answer under another stream's name, without END."""
    frames = answer(nonce)[:3]
    for frame in frames:
        frame.stream_id = stream
    return frames


def check(nonce: bytes, frames: list[Frame]) -> bool:
    identity = IdentityCheck(nonce)
    return [identity.feed(view_of(frame)) for frame in frames][-1]


def test_a_hello_without_a_version_is_told_what_it_lacks() -> None:
    for meta, held in ((None, "nothing"), ({"max_frame": 5, "manifest": b""}, "'max_frame', 'manifest'")):
        with pytest.raises(RemoteProtocolError, match=f"HELLO needs version 6 in its meta, which holds {held}$"):
            read_cartridge_hello(view_of(Frame(FrameType.HELLO, 0, meta=meta)))


def test_a_manifest_without_registry_url_is_told_so() -> None:
    lacking = json.loads(manifest())
    del lacking["registry_url"]
    with pytest.raises(RemoteProtocolError, match="registry_url must be there, as null or a text; it is absent"):
        read_manifest(json.dumps(lacking).encode())


def test_identity_is_proved_by_the_echo() -> None:
    nonce = bytes(range(32))
    assert all(frame.seq == 0 and frame.routing_id is None for frame in identity_request(1, nonce))
    log = Frame(FrameType.LOG, 1, meta={"level": "info", "message": "m", "attribution_class": "internal"})
    assert check(nonce, [log, *answer(nonce)])


@pytest.mark.parametrize(
    ("frames", "complaint"),
    [
        (answer(b"other"), "not the nonce"),
        (answer(b"x" * 40), "longer than the nonce"),
        (answer(bytes(32), checksum=5), "wrong checksum"),
        (answer(bytes(32))[3:], "has no stream"),
        (ended(), "must have exit_code 0, an integer; it has no exit_code"),
        (ended(progress=1.0), "it has no exit_code"),
        (ended(exit_code=1), "it has 1"),
        (ended(exit_code="0"), "it has '0'"),
        (ended(exit_code=0.0), "it has 0.0"),
        (ended(exit_code=False), "it has False"),
        ([*half("a", bytes(16)), *half("b", bytes(16)), end_frame(1)], "must be one stream, and 'b' comes after 'a'"),
        ([*answer(bytes(32))[:3], Frame(FrameType.STREAM_START, 1, stream_id="b"), end_frame(1)], "one stream"),
        ([*half("a", b""), end_frame(1)], "not the nonce that was sent: 0 bytes, not 32 bytes 0000"),
        (answer(bytes(32))[1:], "never started"),
        ([*answer(bytes(32))[:2], answer(bytes(32))[3]], "'r' is open"),
        (
            [Frame(FrameType.ERR, 1, meta={"code": "X", "message": "m", "attribution_class": "input"})],
            "ended with ERR 'X': 'm'",
        ),
    ],
)
def test_identity_failures(frames: list[Frame], complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        check(bytes(32), frames)


def test_pools_name_the_field_at_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="pool 'all' needs queued"):
        read_pools(b'{"all":{"declared":0,"configured":0,"active":0}}')
    assert read_pools(write_pools({"a": PoolState(2, 1, 0, 3)})) == {"a": PoolState(2, 1, 0, 3)}


@pytest.mark.parametrize(("state", "bound"), [((0, 0), 0), ((4, 2), 2), ((4, 0, 0, 0, 3), 3), ((4, 2, 0, 0, 0), 2)])
def test_effective_capacity(state: tuple[int, ...], bound: int) -> None:
    assert PoolState(*state).effective == bound


def manifest(**changes: Any) -> bytes:
    groups = [{"name": "g", "caps": [identity_cap(), {"urn": "cap:echo;in=media:octets;out=media:octets"}]}]
    whole = {
        "name": "m", "version": "1", "channel": "release", "registry_url": None, "description": "",
        "cap_groups": groups,
    }  # fmt: skip
    return json.dumps({**whole, **changes}).encode()


def test_a_manifest_is_read() -> None:
    found = read_manifest(manifest())
    assert [str(cap.urn) for cap in found.caps] == ["cap:effect=none", "cap:echo;in=media:octets;out=media:octets"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"name": 7}, "needs name as text, not 7"),
        ({"channel": "beta"}, "release or nightly, not 'beta'"),
        ({"registry_url": 5}, "registry_url must be there, as null or a text; it is 5"),
        ({"cap_groups": []}, "non-empty list"),
        ({"cap_groups": [{"name": "g", "caps": [{"urn": "cap:x;out=media:a"}]}]}, "identity cap"),
        ({"cap_groups": [{"name": "g", "caps": [{"urn": "not a urn"}]}]}, "cap 'not a urn' of group 'g'"),
    ],
)
def test_a_bad_manifest_names_its_fault(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        read_manifest(manifest(**changes))


def test_limits_may_not_be_reduced_below_the_least_or_what_was_offered() -> None:
    check_least(LEAST_LIMITS, DEFAULT_LIMITS)
    tiny = Limits(3000, 3, 1, 1)
    check_least(tiny, tiny)
    for name, least in LEAST_LIMITS._asdict().items():
        with pytest.raises(
            RemoteProtocolError, match=rf"^HELLO says {name} {least - 1}, .* at least {least}: .*host's"
        ):
            check_least(LEAST_LIMITS._replace(**{name: least - 1}), DEFAULT_LIMITS)


def test_a_manifest_that_is_too_long_is_refused() -> None:
    room = MAX_MANIFEST - len(manifest())
    assert read_manifest(manifest(description="x" * room)).name == "m"
    for changes, complaint in (
        ({"description": "x" * (room + 1)}, "the manifest has 1048577 bytes, and may have 1048576: name fewer caps"),
        ({"version": "1" * (MAX_FACT + 1)}, "version may have 1000 characters, not 1001"),
        ({"registry_url": "u" * (MAX_FACT + 1)}, "registry_url may have 1000 characters, not 1001"),
    ):
        with pytest.raises(RemoteProtocolError, match=complaint):
            read_manifest(manifest(**changes))
        assert any(complaint in fault.text for fault in manifest_faults(manifest(**changes)))
