"""What the manifest offers to try things with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from capdag.errors import ConfigError
from capdag.urn import CapUrn, MediaUrn, UrnError
from capdag.wire import IDENTITY_CAP, AnswerRules

from ._settings import Settings

_CHAT = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}

_KNOWN_INPUTS: Mapping[str, object] = {
    "chat-request": _CHAT,
    "completion-request": {"prompt": "Hello", "max_tokens": 16},
    "embeddings-request": {"input": ["hello"]},
    "rerank-request": {"query": "hello", "documents": ["hello", "goodbye"]},
    "speech-request": {"input": "hello"},
    "translation-request": {"input": ["hello"]},
}
"""What a cap of the inference contract (protocol-spec/caps.md) is asked, by the marker of its media."""

_SELECTOR = b'{"stop": {"max_items": 3}}'
"""What opens a live feed, and ends it."""

_ANY_INPUT = b"30"
"""What any other cap is given: bytes, a text and a JSON number at once."""


class Served(NamedTuple):
    """A cap of the manifest, as far as it can be read."""

    urn: CapUrn
    facts: Mapping[str, Any]

    @property
    def text(self) -> str:
        """Its URN as the manifest has it."""
        return str(self.facts["urn"])

    @property
    def media(self) -> str:
        """The media URN of its main argument."""
        return str(self.urn.in_media)

    @property
    def outputs(self) -> list[Mapping[str, Any]]:
        """What it declares for its answer."""
        outputs = self.facts.get("outputs")
        return [one for one in outputs if isinstance(one, dict)] if isinstance(outputs, list) else []

    def rules(self) -> AnswerRules:
        """Return the rules for the streams of one answer."""
        return AnswerRules(self.urn, self.facts)

    @property
    def gives_a_list(self) -> bool:
        """True if its main output is a sequence."""
        return any(
            one.get("is_sequence") is True and _means(one.get("media_urn"), self.urn.out_media) for one in self.outputs
        )

    @property
    def is_fed(self) -> bool:
        """True if its main argument opens a live feed: a selector, for which nothing is granted."""
        return "live" in self.urn.in_media.tags

    @property
    def has_one_argument(self) -> bool:
        """True if a stream of its in= is all it needs."""
        args = self.facts.get("args")
        objects = [arg for arg in args if isinstance(arg, dict)] if isinstance(args, list) else []
        needed = [arg for arg in objects if arg.get("required") is True]
        return not self.urn.in_media.is_void and len(needed) <= 1 and not any(arg.get("is_sequence") for arg in needed)

    @property
    def gives_back(self) -> bool:
        """True if it has the shape of an echo: any bytes in, the same kind of bytes out."""
        same = self.urn.in_media.is_equivalent(self.urn.out_media)
        structured = any(mark in self.urn.in_media.tags for mark in ("fmt", "record", "list", "enc"))
        return same and self.has_one_argument and not self.gives_a_list and not structured


def _means(text: object, media: MediaUrn) -> bool:
    try:
        return isinstance(text, str) and MediaUrn.parse(text).is_equivalent(media)
    except UrnError:
        return False


def read_served(manifest: bytes) -> list[Served]:
    """Return the caps of a manifest whose URNs can be read."""
    try:
        return list(_caps(json.loads(manifest)))
    except (ValueError, RecursionError):
        return []


def _caps(manifest: object) -> Iterator[Served]:
    groups = manifest.get("cap_groups") if isinstance(manifest, dict) else None
    for group in groups if isinstance(groups, list) else []:
        caps = group.get("caps") if isinstance(group, dict) else None
        for cap in caps if isinstance(caps, list) else []:
            try:
                yield Served(CapUrn.parse(cap["urn"]), cap)
            except (UrnError, TypeError, KeyError):
                continue


class Roles(NamedTuple):
    """Which cap serves for what. `echo` gives bytes back and is the identity cap where no other does; `worker` is
    what the author has named, or a cap whose answer is a list, if there is one."""

    echo: Served
    worker: Served | None
    worker_input: bytes
    others: list[Served]
    """All but the identity cap."""

    def with_identity(self) -> Roles:
        """Return the same roles with the identity cap as the echo."""
        return self._replace(echo=_identity())

    @property
    def holder(self) -> Served | None:
        """A cap, not identity, whose requests live for as long as their one argument is open."""
        return next((one for one in (self.echo, *self.others) if one in self.others and one.has_one_argument), None)


def choose(served: list[Served], settings: Settings) -> Roles:
    """Choose the caps to try things with. Raises ConfigError if `settings.cap` is none of the cartridge's."""
    others = [one for one in served if one.text != IDENTITY_CAP]
    named = _named(others, settings.cap) if settings.cap is not None else None
    echoes = [one for one in ([named] if named else []) + others if one.gives_back]
    if named is not None and settings.input is not None and echoes[:1] == [named]:
        echoes = echoes[1:]  # it wants that input and no other
    lists = [one for one in others if one.gives_a_list and one.has_one_argument]
    worker = named or next(iter(lists), None)
    data = settings.input if settings.input is not None else b"" if worker is None else _input_for(worker)
    return Roles(next(iter(echoes), _identity()), worker, data, others)


def _identity() -> Served:
    return Served(CapUrn.parse(IDENTITY_CAP), {"urn": IDENTITY_CAP, "outputs": [{"media_urn": "media:"}]})


def _named(served: list[Served], name: str) -> Served:
    for one in served:
        aliases = one.facts.get("aliases")
        if name == one.text or (isinstance(aliases, list) and name in aliases):
            return one
    try:
        wanted = CapUrn.parse(name)
    except UrnError:
        wanted = None
    for one in served:
        if wanted is not None and one.urn.is_dispatchable(wanted):
            return one
    raise ConfigError(f"the cartridge has no cap {name!r}; it has {', '.join(one.text for one in served) or 'none'}")


def _input_for(cap: Served) -> bytes:
    if cap.is_fed:
        return _SELECTOR
    for marker, body in _KNOWN_INPUTS.items():
        if marker in cap.urn.in_media.tags:
            return json.dumps(body).encode()
    return _ANY_INPUT
