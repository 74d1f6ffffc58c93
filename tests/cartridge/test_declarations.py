"""What an author declares: defaults, and an error that names the cap, the field and the remedy for each mistake."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

from capdag import cartridge as sdk
from capdag.cartridge import Cartridge, CartridgeError, Request
from capdag.errors import ConfigError, LocalProtocolError
from capdag.wire import NetworkPolicy
from capdag.wire.manifest import read_manifest

CAP = "cap:in=media:text;out=media:text;shout"
ARG: dict[str, Any] = {
    "media_urn": "media:text",
    "name": "input",
    "required": True,
    "sources": [{"stdin": "media:text"}],
}
OUTPUT: dict[str, Any] = {"media_urn": "media:text", "name": "output", "output_description": "louder"}


def handler(request: Request) -> None:
    """Do nothing."""


def declare(urn: str = CAP, **facts: Any) -> Cartridge:
    """Declare one cap."""
    cartridge = Cartridge("test", version="1")
    cartridge.add_cap(urn, handler, **{"title": "Shout", "aliases": ["shout"], **facts})
    return cartridge


def test_urns_become_canonical_everywhere() -> None:
    facts = declare(
        'cap:out=media:b;a;in="media:z;y"',
        args=[{**ARG, "media_urn": "media:z;y", "sources": [{"stdin": "media:z;y"}, {"position": 0}]}],
        outputs=[{**OUTPUT, "media_urn": "media:b"}, {**OUTPUT, "media_urn": "media:d;c", "name": "other"}],
        metadata={"model": "tiny"},
    ).manifest()["cap_groups"][0]["caps"][1]
    assert facts["urn"] == 'cap:a;in="media:y;z";out=media:b'
    assert facts["args"][0]["media_urn"] == "media:y;z"
    assert facts["args"][0]["sources"] == [{"stdin": "media:y;z"}, {"position": 0}]
    assert [output["media_urn"] for output in facts["outputs"]] == ["media:b", "media:c;d"]
    assert facts["metadata"] == {"model": "tiny"}


def test_a_void_side_has_no_arguments_or_outputs() -> None:
    facts = declare("cap:tick;in=media:void;out=media:void").manifest()["cap_groups"][0]["caps"][1]
    assert (facts["args"], facts["outputs"]) == ([], [])


def test_the_manifest_is_one_that_a_host_takes() -> None:
    manifest = read_manifest(json.dumps(declare(capacity=4).manifest()).encode())
    assert manifest.pool_declarations == {"pools": {}, "capacities": {CAP: 4}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"urn": "media:text"}, "is not a cap URN"),
        ({"urn": "cap:"}, "is not a cap URN"),
        ({"title": ""}, "title must be a non-empty text"),
        ({"aliases": []}, "aliases must be a non-empty list of texts, not []"),
        ({"aliases": "shout"}, "not 'shout'"),
        ({"capacity": -1}, "an integer of at least 0"),
        ({"capacity": True}, "an integer of at least 0"),
        ({"args": []}, "args must have 1 with a stdin source equivalent to in=media:text, not 0"),
        ({"args": [ARG, {**ARG, "name": "again"}]}, "equivalent to in=media:text, not 2"),
        ({"args": ["text"]}, "args[0] must be a map"),
        ({"args": [{**ARG, "colour": 1}]}, "args[0] has the unknown key 'colour'"),
        ({"args": [{**ARG, "required": 1}]}, "args[0].required must be true or false, not 1"),
        ({"args": [{key: ARG[key] for key in ("media_urn", "name", "sources")}]}, "args[0] needs required"),
        ({"args": [{**ARG, "name": "no good"}]}, "args[0].name must be a letter or _"),
        ({"args": [{**ARG, "name": "true"}]}, "args[0].name must be"),
        ({"args": [{**ARG, "name": "1st"}]}, "args[0].name must be"),
        ({"args": [{**ARG, "media_urn": "text"}]}, "args[0].media_urn is not a media URN"),
        ({"args": [{**ARG, "sources": []}]}, "args[0].sources must name where the value comes from"),
        ({"args": [{**ARG, "sources": ["stdin"]}]}, "args[0].sources[0] must be a map with one of stdin"),
        ({"args": [{**ARG, "sources": [{"stdin": "x"}]}]}, "sources[0].stdin is not a media URN"),
        ({"args": [{**ARG, "sources": [*ARG["sources"], {"position": -1}]}]}, "position must be an integer"),
        ({"args": [{**ARG, "sources": [*ARG["sources"], {"position": 1}]}]}, "without gaps, not [1]"),
        ({"args": [{**ARG, "sources": [*ARG["sources"], {"cli_flag": "--help"}]}]}, "cli_flag must be a text other"),
        (
            {"args": [{**ARG, "sources": [*ARG["sources"], {"position": 0}, {"cli_flag": "-x"}]}]},
            "has both position and cli_flag",
        ),
        ({"args": [{**ARG, "accepts": "text"}]}, "accepts cannot stand beside a stdin source"),
        (
            {
                "args": [
                    ARG,
                    {**ARG, "name": "b", "media_urn": "media:b", "sources": [{"position": 0}], "streaming": True},
                ]
            },
            "args[1].streaming is for the main input only",
        ),
        ({"args": [ARG, {**ARG, "media_urn": "media:b", "sources": [{"position": 0}]}]}, "two args have the name"),
        ({"args": [ARG, {**ARG, "name": "b", "sources": [{"position": 0}]}]}, "two args have the media_urn"),
        ({"urn": "cap:x;in=media:void;out=media:text", "args": [ARG]}, "in=media:void takes no stream"),
        ({"outputs": []}, "outputs must have one equivalent to out=media:text, not 0"),
        ({"outputs": [OUTPUT, {**OUTPUT, "name": "b"}]}, "not 2"),
        ({"outputs": [{**OUTPUT, "carries": "water"}]}, "carries must be 'input', not 'water'"),
        ({"outputs": [{**OUTPUT, "is_sequence": "yes"}]}, "is_sequence must be true or false"),
        ({"urn": "cap:x;in=media:text;out=media:void", "outputs": [OUTPUT]}, "has no outputs, but 1 are declared"),
    ],
)
def test_mistakes_in_a_cap(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        declare(**change)
    assert why in str(caught.value)
    assert "cap" in str(caught.value)


def test_handlers_that_would_not_run() -> None:
    async def asynchronous(request: Request) -> None: ...

    async def asynchronous_generator(request: Request) -> AsyncIterator[int]:
        yield 1

    def generator(request: Request) -> Iterator[int]:
        yield 1

    class Callable:
        async def __call__(self, request: Request) -> None: ...

    cartridge = Cartridge("test", version="1")
    for wrong, why in (
        (asynchronous_generator, "must not yield"),
        (generator, "must not yield"),
        ("handler", "must be a function"),
    ):
        with pytest.raises(ConfigError, match=why):
            cartridge.add_cap(CAP, wrong, title="t", aliases=["t"])  # type: ignore[arg-type]
    for number, right in enumerate((asynchronous, partial(asynchronous), Callable(), lambda _: None)):
        cap = f"{CAP};n={number}"
        cartridge.add_cap(cap, right, title="t", aliases=["t"])
        (served,) = (served for urn, served in cartridge._caps.items() if f"n={number}" in urn)
        assert served.is_async == (number < 3)


def test_mistakes_in_a_cartridge() -> None:
    with pytest.raises(ConfigError, match="serves no cap"):
        Cartridge("test", version="1").manifest()
    for wrong in ({"name": ""}, {"version": 1}, {"description": None}):
        facts: dict[str, Any] = {"name": "test", "version": "1", **wrong}
        cartridge = Cartridge(facts.pop("name"), **facts)
        cartridge.add_cap(CAP, handler, title="t", aliases=["t"])
        with pytest.raises(ConfigError, match=f"Cartridge {next(iter(wrong))} must be"):
            cartridge.manifest()
    with pytest.raises(ConfigError, match="registered twice"):
        declare().add_cap("cap:shout;out=media:text;in=media:text", handler, title="t", aliases=["t"])


@pytest.mark.parametrize(
    ("name", "caps", "why"),
    [
        ("gpu", ["cap:other;in=media:text"], "is not registered"),
        ("gpu", ["nonsense"], "is not a cap URN"),
        ("gpu", [], "at least one cap"),
        ("all", [CAP], "a name of its own"),
        ("cap:gpu", [CAP], "a name of its own"),
    ],
)
def test_mistakes_in_a_pool(name: str, caps: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        declare().add_pool(name, caps, 1)


def test_the_decorator_gives_the_handler_back() -> None:
    cartridge = Cartridge("test", version="1")
    assert cartridge.cap(CAP, title="t", aliases=["t"])(handler) is handler


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAPDAG_CONFIG", raising=False)
    assert Cartridge("test", version="1").settings == {}
    monkeypatch.setenv("CAPDAG_CONFIG", '{"threads": 2}')
    assert Cartridge("test", version="1").settings == {"threads": 2}
    monkeypatch.setenv("CAPDAG_CONFIG", "threads = 2")
    with pytest.raises(ConfigError, match="CAPDAG_CONFIG is not JSON"):
        _ = Cartridge("test", version="1").settings


def test_a_cartridge_error_says_what_it_must() -> None:
    error = CartridgeError("FULL", "no slot is free", "resource", {"retryable": True})
    assert (error.code, error.attribution, error.message, error.detail) == (
        "FULL",
        "resource",
        "no slot is free",
        {"retryable": True},
    )
    with pytest.raises(LocalProtocolError, match="attribution must be one of input, resource"):
        CartridgeError("FULL", "no slot is free", "nobody")
    with pytest.raises(LocalProtocolError, match="code must be a non-empty text"):
        CartridgeError("", "no slot is free")
    with pytest.raises(LocalProtocolError, match="message must be a non-empty text"):
        CartridgeError("FULL", "")


def test_what_the_network_policy_allows() -> None:
    cartridge = Cartridge("test", version="1")
    with pytest.raises(CartridgeError) as unset:
        cartridge.require_network()
    assert (unset.value.code, unset.value.attribution) == ("NETWORK_POLICY_UNSET", "internal")
    for policy, third_parties, telemetry in (
        ("offline", False, False),
        ("no_telemetry", True, False),
        ("full", True, True),
    ):
        cartridge._set_policy(NetworkPolicy(policy))
        for needed, allowed in ((False, third_parties), (True, telemetry)):
            if allowed:
                cartridge.require_network(telemetry=needed)
                continue
            with pytest.raises(CartridgeError, match=f"policy is {policy}: this needs") as refused:
                cartridge.require_network(telemetry=needed)
            assert (refused.value.code, refused.value.attribution) == ("NETWORK_POLICY", "user")


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in sdk.__all__:
        assert getattr(sdk, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = sdk.Nothing


class Engine:
    """Has handlers."""

    def serve(self, request: Request) -> None: ...

    def nothing(self) -> None: ...

    def __call__(self, request: Request) -> None: ...


def two(engine: Engine, request: Request) -> None: ...


def named(request: Request, *, engine: Engine) -> None: ...


def optional(request: Request, engine: Engine | None = None) -> None: ...


def wrapped(*arguments: Any) -> None: ...


wrapped.__wrapped__ = two  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "right",
    [
        handler,
        Engine().serve,
        Engine(),
        partial(two, Engine()),
        partial(named, engine=Engine()),
        optional,
        wrapped,
        print,
    ],
)
def test_a_handler_takes_one_argument(right: Any) -> None:
    Cartridge("test", version="1").add_cap(CAP, right, title="t", aliases=["t"])


@pytest.mark.parametrize("wrong", [lambda: None, two, named, Engine.serve, Engine().nothing, partial(two), Engine])
def test_a_handler_that_takes_none_or_more_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="the handler must be a function of one argument, the request; "):
        Cartridge("test", version="1").add_cap(CAP, wrong, title="t", aliases=["t"])
    with pytest.raises(ConfigError, match="the source must be a generator of one argument, the selector; "):
        Cartridge("test", version="1").feed("media:live;x")(wrong)
