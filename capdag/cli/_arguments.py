"""Which capability a call means, and its arguments as words of a command line."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from io import FileIO
from itertools import chain
from typing import Any, NamedTuple

import trio

from capdag.cartridge.words import ItemLines, path_in, text_of
from capdag.client import Argument
from capdag.errors import CapdagError, ConfigError
from capdag.printable import printable
from capdag.relay import Capability
from capdag.urn import CapTable, CapUrn, MediaUrn, UrnError

from ._failure import FAILED, CallEndedError

_READ_SIZE = 65_536
_LONGEST_NAME = 200
"""Characters of a cap's name that are shown."""

_VOID = MediaUrn.parse("media:void")


class NotServedError(CapdagError):
    """No cartridge serves what was asked for."""

    code = "NO_HANDLER"


def find_capability(text: str, served: Sequence[Capability]) -> Capability:
    """Return what `text` means: a cap URN that it serves best, as the switch will choose, or a name (an alias or a tag)
    that only one has.

    Raises NotServedError naming what is served, ConfigError for a text that is no URN or a name that is ambiguous.
    """
    if text.startswith("cap:"):
        try:
            wanted = CapUrn.parse(text)
        except UrnError as error:
            raise ConfigError(f"{text!r} is no cap URN: {error}") from None
        table: CapTable[int] = CapTable()
        for number, capability in enumerate(served):
            table.register(capability.urn, number)
        found = [served[number] for number in table.ranking(wanted)]
    else:
        named = [capability for capability in served if _is_called(capability, text)]
        found = list({capability.text: capability for capability in reversed(named)}.values())[::-1]
        if len(found) > 1:
            raise ConfigError(f"{text!r} may mean {_list(found)}: give the cap URN")
    if not found:
        names = dict.fromkeys(
            printable(_short_name(capability), _LONGEST_NAME) for capability in served if capability.urn.tags
        )
        raise NotServedError(f"no cartridge serves {text!r}; served: {', '.join(names) or 'nothing'}")
    return found[0]


def _is_called(capability: Capability, name: str) -> bool:
    return name in _aliases(capability) or capability.urn.tags.get(name) == "*"


def _short_name(capability: Capability) -> str:
    tags = (name for name, value in capability.urn.tags.items() if value == "*")
    return next(chain(_aliases(capability), tags), capability.text)


def _aliases(capability: Capability) -> list[str]:
    """Return the aliases that can be read: hosts let a cap pass whose facts are odd."""
    return [alias for alias in _list_of(capability, "aliases") if isinstance(alias, str)]


def _list_of(capability: Capability, key: str) -> list[Any]:
    value = capability.facts.get(key)
    return value if isinstance(value, list) else []


def _list(capabilities: Iterable[Capability]) -> str:
    return ", ".join(printable(capability.text) for capability in capabilities if capability.urn.tags)


class _Taken(NamedTuple):
    """An argument that a capability takes: the media URN of its stream, and whether it is a sequence; None if the
    manifest does not say."""

    media_urn: str
    is_sequence: bool | None


def _taken_by(capability: Capability) -> dict[MediaUrn, _Taken]:
    """Return the arguments that can be read, by each media URN that means one; the main input's is the first."""
    main = capability.urn.in_media
    taken = {main: _Taken(str(main), None)}
    for facts in _list_of(capability, "args"):
        if isinstance(facts, dict) and (names := _names_of(facts)):
            # As in command mode, the stream is what the stdin source says; it is the last name.
            taken |= dict.fromkeys(names, _Taken(list(names.values())[-1], facts.get("is_sequence") is True))
    return taken


def _names_of(facts: Mapping[str, Any]) -> dict[MediaUrn, str]:
    """Return the media URNs that mean an argument, and how each is written."""
    sources = facts.get("sources")
    named = [source.get("stdin") for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []
    names: dict[MediaUrn, str] = {}
    for text in (facts.get("media_urn"), *named):
        with suppress(UrnError):
            if isinstance(text, str):
                names[MediaUrn.parse(text)] = text
    return names


def read_arguments(words: Sequence[str], capability: Capability) -> list[Argument]:
    """Return the arguments that `words` give, each MEDIA=VALUE or, for the main input, VALUE.

    VALUE is `-` for stdin, `@FILE` for a file, or the text itself. Of an argument that the manifest says is a sequence
    stdin and files have a line of JSON an item and a text is one; its words are taken in their order. Without words
    the main input is stdin, if there is a main input. Raises ConfigError for a media URN that the capability does not
    take, for a value given twice, and for a file that cannot be read.
    """
    main = capability.urn.in_media
    taken = _taken_by(capability)
    if not words and main != _VOID:
        words = ["-"]
    given = [_split(word, main, taken) for word in words]
    if sum(value == "-" for _, value in given) > 1:
        raise ConfigError("stdin can be the value of one argument only")
    _check_once([argument.media_urn for argument, _ in given if argument.is_sequence is False])
    items: defaultdict[str, list[str]] = defaultdict(list)
    for argument, value in given:
        if argument.is_sequence:
            items[argument.media_urn].append(value)
    found: list[Argument] = []
    for argument, value in given:
        if not argument.is_sequence:
            found.append(Argument(argument.media_urn, _scalar(value)))
        elif argument.media_urn in items:
            found.append(
                Argument(argument.media_urn, _sequence(argument.media_urn, items.pop(argument.media_urn)), True)
            )
    return found


def _check_once(media: Sequence[str]) -> None:
    for text, count in Counter(media).items():
        if count > 1:
            raise ConfigError(f"--arg {text} is given {count} times; it is no sequence and has one value")


def _split(word: str, main: MediaUrn, taken: Mapping[MediaUrn, _Taken]) -> tuple[_Taken, str]:
    """Split MEDIA=VALUE. Both may hold `=`: the longest MEDIA that the capability takes is meant."""
    if not word.startswith("media:"):
        return taken[main], word
    for end in (position for position in reversed(range(len(word))) if word[position] == "="):
        try:
            media = MediaUrn.parse(word[:end])
        except UrnError:
            continue
        if media in taken:
            return taken[media], word[end + 1 :]
    raise ConfigError(f"--arg {word!r}: write MEDIA=VALUE with one of {', '.join(map(str, taken))}")


def _scalar(value: str) -> bytes | AsyncIterator[bytes]:
    """Return the value, or what reads it as it comes."""
    source = _open(value)
    return source.encode() if isinstance(source, str) else _pieces(source)


def _sequence(media_urn: str, values: Sequence[str]) -> AsyncIterator[Any]:
    """Return the items of all values."""
    return _items(media_urn, [_open(value) for value in values])


def _open(value: str) -> str | FileIO:
    """Return a text, or the file that a value names. Raises ConfigError for a file that cannot be read."""
    path = path_in(value)
    if value != "-" and path is None:
        return text_of(value)
    if path is None and not sys.stdin:  # None in a process that was started without
        raise CallEndedError("stdin is closed: give the input with --arg, or redirect stdin", FAILED)
    try:
        # Unbuffered: a thread that is left waiting in a read must not hold a lock that the interpreter's end needs.
        if path is None:
            return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise ConfigError(f"cannot read {path or 'stdin'}: {error.strerror}") from None


async def _items(media_urn: str, sources: Sequence[str | FileIO]) -> AsyncIterator[Any]:
    for source in sources:
        if isinstance(source, str):
            yield source
            continue
        lines = ItemLines(media_urn)
        async with aclosing(_pieces(source)) as pieces:
            async for piece in pieces:
                for item in lines.feed(piece):
                    yield item
        for item in lines.feed(b""):
            yield item


async def _pieces(file: FileIO) -> AsyncGenerator[bytes, None]:
    """Yield a file as it comes. A thread that still waits for input when the call ends is left behind."""
    with file:
        while piece := await trio.to_thread.run_sync(_read, file, abandon_on_cancel=True):
            yield piece


def _read(file: FileIO) -> bytes:
    try:
        return file.read(_READ_SIZE)
    except OSError as error:
        name = "stdin" if isinstance(file.name, int) else file.name
        raise CallEndedError(f"cannot read {name}: {error.strerror}; the call was cancelled", FAILED) from None
