"""Which capability a call means, and its arguments as words of a command line."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from io import FileIO
from itertools import chain
from typing import Any

import trio

from capdag.client import Argument
from capdag.errors import CapdagError, ConfigError
from capdag.printable import printable
from capdag.relay import Capability
from capdag.urn import CapUrn, MediaUrn, UrnError

from ._failure import FAILED, CallEndedError

_READ_SIZE = 65_536
_LONGEST_NAME = 200
"""Characters of a cap's name that are shown."""

_VOID = MediaUrn.parse("media:void")


class NotServedError(CapdagError):
    """No cartridge serves what was asked for."""

    code = "NO_HANDLER"


def find_capability(text: str, served: Sequence[Capability]) -> Capability:
    """Return what `text` means: a cap URN that it may serve, or a name (an alias or a tag) that only one has.

    Raises NotServedError naming what is served, ConfigError for a text that is no URN or a name that is ambiguous.
    """
    if text.startswith("cap:"):
        try:
            wanted = CapUrn.parse(text)
        except UrnError as error:
            raise ConfigError(f"{text!r} is no cap URN: {error}") from None
        found = [capability for capability in served if capability.urn.is_dispatchable(wanted)]
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


def _argument_media(capability: Capability) -> list[str]:
    """Return the media URNs of the arguments that can be read."""
    found = [arg.get("media_urn") for arg in _list_of(capability, "args") if isinstance(arg, dict)]
    return [text for text in found if isinstance(text, str) and _is_media(text)]


def _is_media(text: str) -> bool:
    try:
        MediaUrn.parse(text)
    except UrnError:
        return False
    return True


def _list_of(capability: Capability, key: str) -> list[Any]:
    value = capability.facts.get(key)
    return value if isinstance(value, list) else []


def _list(capabilities: Iterable[Capability]) -> str:
    return ", ".join(printable(capability.text) for capability in capabilities if capability.urn.tags)


def read_arguments(words: Sequence[str], capability: Capability) -> list[Argument]:
    """Return the arguments that `words` give, each MEDIA=VALUE or, for the main input, VALUE.

    VALUE is `-` for stdin, `@FILE` for a file, or the text itself. Without words the main input is stdin, if there is
    a main input. Raises ConfigError for a media URN that the capability does not take and for a file that cannot be
    read.
    """
    main = capability.urn.in_media
    taken = [str(main), *_argument_media(capability)]
    if not words and main != _VOID:
        words = ["-"]
    if sum(_split(word, taken)[1] == "-" for word in words) > 1:
        raise ConfigError("stdin can be the value of one argument only")
    return [Argument(media, _open(value)) for media, value in (_split(word, taken) for word in words)]


def _split(word: str, taken: Sequence[str]) -> tuple[str, str]:
    """Split MEDIA=VALUE. Both may hold `=`: the longest MEDIA that the capability takes is meant."""
    if not word.startswith("media:"):
        return taken[0], word
    wanted = {MediaUrn.parse(text): text for text in taken}
    for end in (position for position in reversed(range(len(word))) if word[position] == "="):
        try:
            media = MediaUrn.parse(word[:end])
        except UrnError:
            continue
        if media in wanted:
            return wanted[media], word[end + 1 :]
    raise ConfigError(f"--arg {word!r}: write MEDIA=VALUE with one of {', '.join(dict.fromkeys(taken))}")


def _open(value: str) -> bytes | AsyncIterator[bytes]:
    """Return the value, or what reads it as it comes. Raises ConfigError for a file that cannot be read."""
    if value != "-" and not value.startswith("@"):
        return value.encode()
    if value == "-" and not sys.stdin:  # None in a process that was started without
        raise CallEndedError("stdin is closed: give the input with --arg, or redirect stdin", FAILED)
    try:
        # Unbuffered: a thread that is left waiting in a read must not hold a lock that the interpreter's end needs.
        if value == "-":
            return _pieces(open(sys.stdin.fileno(), "rb", buffering=0, closefd=False))
        return _pieces(open(value[1:], "rb", buffering=0))
    except OSError as error:
        raise ConfigError(f"cannot read {value[1:] or 'stdin'}: {error.strerror}") from None


async def _pieces(file: FileIO) -> AsyncIterator[bytes]:
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
