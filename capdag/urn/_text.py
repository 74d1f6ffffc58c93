"""Reading and writing the text form shared by all URNs: `prefix:tag;tag;…`.

Well-formed tags are taken by one regular expression each, without backtracking; `_fault` looks closer only once a tag
has failed. Every step is linear in the text, and sorting the tags makes the whole n log n.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from capdag.urn._error import UrnError
from capdag.urn._forms import QUALIFIED, SIGILS

MAX_TEXT: Final = 65_536
"""Longest text read or written, in characters."""
MAX_TAGS: Final = 1_024
"""Most tags in one URN; in a cap, `in` and `out` count as one tag each, and what they hold apart."""

# `\w` is exactly str.isalnum() or "_" for a str pattern.
_KEY = re.compile(r"[\w\-/:.]++")
_BARE = re.compile(r"[\w\-/:.*?!]++")
_PLAIN = re.compile(r"[a-z0-9_\-/:.*?!]++")
_QUOTED = re.compile(r'(?:[^"\\]++|\\["\\])*+')
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_TAG = re.compile(
    rf";*+(?P<before>[?!]?)(?P<key>{_KEY.pattern})(?P<after>[?!]?)"
    rf'(?:=(?:"(?P<quoted>{_QUOTED.pattern})"|(?P<bare>{_BARE.pattern})))?(?=;|\Z)'
)

_CLASHES = frozenset(qualifier + sigil for qualifier in QUALIFIED for sigil in SIGILS)

_KEY_RULE = "a key holds letters, digits and _ - / : ."
_VALUE_RULE = 'a value without quotes holds letters, digits and _ - / : . * ? !; write anything else as key="value"'


def scan(text: str) -> tuple[str, dict[str, str]]:
    """Return the prefix, lower-cased, and the stored tags in key order.

    Raises `UrnError` for the first fault from the left (their order: protocol-spec/urn.md).
    """
    colon = _check_frame(text)
    tags: dict[str, str] = {}
    pos, end = colon + 1, len(text.rstrip(";"))
    while pos < end:
        match = _TAG.match(text, pos, end)
        if match is None:
            raise _fault(text, pos)
        key, stored = _read_tag(text, match)
        if key in tags:
            raise UrnError("duplicate_key", text, match.start("key"), f"give the key {key!r} once")
        if key.isdigit():
            raise UrnError("numeric_key", text, match.start("key"), f"the key {key!r} needs a letter, as in n{key}")
        tags[key] = stored
        if len(tags) > MAX_TAGS:
            raise UrnError("too_many_tags", text, match.start("key"), f"write at most {MAX_TAGS:,} tags")
        pos = match.end()
    prefix = text[:colon].lower()
    if not text.isascii():
        check_surrogates(text)
    return prefix, dict(sorted(tags.items()))


def _check_frame(text: str) -> int:
    """Check what concerns the text as a whole and return the place of the colon."""
    if len(text) > MAX_TEXT:
        raise UrnError("too_long", text, MAX_TEXT, f"write at most {MAX_TEXT:,} characters (here {len(text):,})")
    if text != text.strip():
        at = 0 if text[0].isspace() else len(text.rstrip())
        raise UrnError("outer_whitespace", text, at, "remove the white space around the URN")
    if not text:
        raise UrnError("empty", text, None, "write a URN, as in media:text or cap:chat")
    colon = text.find(":")
    if colon < 0:
        raise UrnError("missing_prefix", text, len(text), "start with a prefix and a colon, as in media: or cap:")
    if colon == 0:
        raise UrnError("empty_prefix", text, 0, "put a prefix before the colon, as in media: or cap:")
    return colon


def _read_tag(text: str, match: re.Match[str]) -> tuple[str, str]:
    before, key, after, quoted, bare = match.groups()
    if before and after:
        raise _two_marks(text, match.start("after"))
    mark = before or after
    if quoted is not None:
        value = _unescaped(quoted) if "\\" in quoted else quoted
    elif bare is not None:
        value = lowered(bare)
    else:
        return lowered(key), mark or "*"
    if not mark:
        if not value:
            raise UrnError("empty_component", text, match.start("quoted"), f"give {key!r} a value, or drop the '='")
        return lowered(key), value
    if value in SIGILS:
        at = match.start("bare" if quoted is None else "quoted")
        raise UrnError("invalid_character", text, at, f"{mark!r} needs a plain value, as in {key}{mark}=value")
    return lowered(key), f"{mark}={value}"


def _fault(text: str, pos: int) -> UrnError:
    """Say what is wrong with the tag that starts at `pos` and that `_TAG` refused."""
    end = len(text)
    while text[pos] == ";":
        pos += 1
    start = pos
    if text[pos] in "?!":
        pos += 1
        if pos == end:
            return UrnError("empty_component", text, pos, f"put a key after {text[start]!r}")
    key = _KEY.match(text, pos)
    if key is None:
        return UrnError("invalid_character", text, pos, _KEY_RULE)
    pos = key.end()
    if pos < end and text[pos] in "?!":
        if start < key.start():
            return _two_marks(text, pos)
        pos += 1
    if text[pos] != "=":
        return UrnError("invalid_character", text, pos, f"{_KEY_RULE}; '=' or ';' must follow it")
    pos += 1
    if pos == end or text[pos] == ";":
        return UrnError("empty_component", text, pos, f"give {key[0]!r} a value, or drop the '='")
    if text[pos] == '"':
        return _quote_fault(text, pos)
    bare = _BARE.match(text, pos)
    return UrnError("invalid_character", text, bare.end() if bare else pos, _VALUE_RULE)


def _quote_fault(text: str, opening: int) -> UrnError:
    body = _QUOTED.match(text, opening + 1)
    pos = body.end() if body else opening + 1
    if text[pos : pos + 1] == '"':
        return UrnError("invalid_character", text, pos + 1, "only ';' or the end may follow the closing quote")
    if pos + 1 >= len(text):
        return UrnError("unterminated_quote", text, opening, "close the quote that opens here")
    return UrnError("invalid_escape", text, pos, r"within quotes write \\ for a backslash and \" for a quote")


def _two_marks(text: str, position: int) -> UrnError:
    return UrnError("invalid_character", text, position, "put ? or ! on one side of the key only")


def check_surrogates(text: str) -> None:
    """Refuse half a surrogate pair: such text cannot be sent as UTF-8."""
    match = _SURROGATE.search(text)
    if match is not None:
        raise UrnError("lone_surrogate", text, match.start(), "remove the lone surrogate: it is no character")


def check_keys(tags: Mapping[str, str], text: str) -> None:
    """Refuse a key whose lower case is not a key (`İ` becomes two characters): no text could carry it."""
    for key in tags:
        if not _KEY.fullmatch(key):
            raise UrnError("invalid_character", text, position_of(text, key), f"its lower case is no key: {_KEY_RULE}")


def checked_tags(given: Mapping[str, str]) -> dict[str, str]:
    """Return stored tags given by a program in key order, keys lower-cased, or raise `UrnError`."""
    tags: dict[str, str] = {}
    for name, stored in given.items():
        key = lowered(name)
        if not _KEY.fullmatch(key):
            raise UrnError("invalid_character", name, None, _KEY_RULE)
        if key.isdigit():
            raise UrnError("numeric_key", name, None, f"the key {key!r} needs a letter, as in n{key}")
        if key in tags:
            raise UrnError("duplicate_key", name, None, f"give the key {key!r} once")
        if not stored:
            raise UrnError("empty_component", name, None, f"give {key!r} a value, or '*' for any")
        check_surrogates(stored)
        tags[key] = stored
    return dict(sorted(tags.items()))


def lowered(text: str) -> str:
    """Lower-case one character at a time: `Σ` is always `σ`, never the `ς` of a word's end."""
    return text.lower() if "Σ" not in text else "".join(map(str.lower, text))


def position_of(text: str, key: str) -> int | None:
    """Return where the tag `key` starts in a text that `scan` has accepted."""
    for match in _TAG.finditer(text, text.index(":") + 1):
        if lowered(match["key"]) == key:
            return match.start("key")
    return None


def render(prefix: str, tags: Mapping[str, str]) -> str:
    """Return the canonical text of stored tags that are in key order."""
    return joined(prefix, [segment(key, stored) for key, stored in tags.items()])


def joined(prefix: str, segments: Sequence[str]) -> str:
    """Put segments together, within the limits of a text: what is written can be read back."""
    text = f"{prefix}:{';'.join(segments)}"
    if len(segments) > MAX_TAGS:
        raise UrnError("too_many_tags", text, None, f"give at most {MAX_TAGS:,} tags (here {len(segments):,})")
    if len(text) > MAX_TEXT:
        raise UrnError(
            "too_long",
            text,
            MAX_TEXT,
            f"its canonical text may have at most {MAX_TEXT:,} characters (here {len(text):,})",
        )
    return text


def segment(key: str, stored: str) -> str:
    """Return one tag as canonical text writes it."""
    # An operand such as the `*` of `?=*` is legal only as part of a quoted text.
    return f'{key}="{stored}"' if stored in _CLASHES else _written(key, stored, _quoted)


def _written(key: str, stored: str, quoted: Callable[[str], str]) -> str:
    if stored == "*":
        return key
    if stored in SIGILS:
        return stored + key
    if stored[:2] in QUALIFIED:
        return f"{key}{stored[:2]}{quoted(stored[2:])}"
    return f"{key}={quoted(stored)}"


def _quoted(value: str) -> str:
    """Return the value bare when reading it bare gives it back, else in quotes.

    Letters that count as upper case are quoted even where they have no lower case, as the public package does.
    """
    if _PLAIN.fullmatch(value):
        return value
    if _BARE.fullmatch(value) and not any(c.isupper() or c.lower() != c for c in value):
        return value
    return f'"{_escaped(value)}"'


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"")


def _unescaped(quoted: str) -> str:
    # From the left, two backslashes in a row are always one escape: the first cannot end another.
    return "\\".join([part.replace(r"\"", '"') for part in quoted.split(r"\\")])


def public_text(prefix: str, tags: Mapping[str, str]) -> str:
    r"""Return the text that the public package writes for stored tags; it cannot always be read back.

    It leaves out the quotes around a value that has none of `;` `=` `"` `\`, space or an upper-case letter, whatever
    else is in it. A text of ours without quotes is the same there.
    """
    return joined(prefix, [_written(key, stored, _quoted_by_public) for key, stored in tags.items()])


def unreadable_key(tags: Mapping[str, str]) -> str | None:
    """Return the first key whose tag cannot be read back from `public_text`."""
    for key, stored in tags.items():
        if stored in _CLASHES or not _TAG.fullmatch(_written(key, stored, _quoted_by_public)):
            return key
    return None


def _quoted_by_public(value: str) -> str:
    return f'"{_escaped(value)}"' if any(c in ';="\\ ' or c.isupper() for c in value) else value
