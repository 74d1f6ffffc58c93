"""What a caller says of a live feed that it wants opened, and what an author registers for it (protocol-spec/wire.md,
Live feeds)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from capdag.urn import MediaUrn

from ._errors import CartridgeError

LONGEST_SELECTOR = 65_536
"""Bytes of a selector that are read."""

LIVE = "live"
"""The tag of a media URN that makes its stream a selector of a feed."""

DROP_OLDEST, FAIL = "drop-oldest", "fail"

Bad = Callable[[str, Mapping[str, object] | None], CartridgeError]


class Selector(NamedTuple):
    """A feed as it was asked for. `device` and `params` are the feed's own; the rest the SDK sees to.

    The feed stops `duration_ms` milliseconds after it was opened, or after `max_items` items; None means no such
    limit. `on_overrun` says what happens when the handler is slower than the feed.
    """

    device: str | None = None
    params: Mapping[str, Any] = MappingProxyType({})
    duration_ms: int | None = None
    max_items: int | None = None
    on_overrun: str = DROP_OLDEST


class FeedItem(NamedTuple):
    """One item of a feed with its times in microseconds, where the source knows them better than the clock does:
    `pts_us` since the feed was opened, `capture_ts_us` since 1970."""

    value: Any
    pts_us: int | None = None
    capture_ts_us: int | None = None


FeedOpener = Callable[[Selector], Iterable[Any] | AsyncIterable[Any]]
"""What an author registers: gives the items of a feed, bare or as `FeedItem`. A generator, plain or async: it is closed
when the feed ends."""


class LiveFeed(NamedTuple):
    """A registered feed."""

    media: MediaUrn
    opener: FeedOpener
    is_async: bool


def read_selector(data: bytes, bad: Bad) -> Selector:
    """Read a selector: a JSON object, or nothing for all defaults. Raises what `bad` makes, naming the field, the value
    and the remedy."""
    if not data:
        return Selector()
    try:
        given = json.loads(data)
    except (ValueError, RecursionError) as error:
        shown = data[:60].decode(errors="replace")
        raise bad(f"has a selector that is not JSON: {error}; it begins {shown!r}", None) from None
    given = _object(bad, "selector", given, ("device", "params", "stop", "on_overrun"))
    stop = _object(bad, "stop", given.get("stop", {}), ("duration_ms", "max_items"))
    params = given.get("params", {})
    if not isinstance(params, dict):
        raise _wrong(bad, "params", params, "a JSON object")
    device = given.get("device")
    if device is not None and not isinstance(device, str):
        raise _wrong(bad, "device", device, "a text")
    on_overrun = given.get("on_overrun", DROP_OLDEST)
    if on_overrun not in (DROP_OLDEST, FAIL):
        raise _wrong(bad, "on_overrun", on_overrun, f"{DROP_OLDEST!r} or {FAIL!r}")
    return Selector(device, params, _limit(bad, stop, "duration_ms"), _limit(bad, stop, "max_items"), on_overrun)


def _object(bad: Bad, name: str, value: object, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(bad, name, value, "a JSON object")
    for key in value:
        if key not in known:
            raise bad(f"has the unknown field {key!r} in its {name}: known are {', '.join(known)}", {"field": key})
    return value


def _limit(bad: Bad, stop: Mapping[str, Any], name: str) -> int | None:
    value = stop.get(name)
    if value is not None and (type(value) is not int or value <= 0):
        raise _wrong(bad, f"stop.{name}", value, "an integer of at least 1")
    return value


def _wrong(bad: Bad, field: str, value: object, wanted: str) -> CartridgeError:
    return bad(f"has {field} {value!r:.60}: it must be {wanted}", {"field": field})
