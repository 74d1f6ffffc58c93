"""The one error of this room."""

from __future__ import annotations

from capdag.errors import AttributionClass, CapdagError

_SHOWN = 40
"""Characters of the text shown on each side of the fault, so that a 64 KiB text never fills a log line."""


class UrnError(CapdagError):
    """A URN text, a part of one, or a question asked of one is wrong.

    `kind` is a stable word (protocol-spec/urn.md lists them all), `text` what was read and `position` the index of
    the first wrong character in it, or None when the fault has no single place. The message shows the place and
    says what would be right. For kinds `bad_in`, `bad_out` and `tags_not_serialisable` the inner error is `__cause__`.
    """

    code = "INVALID_REQUEST"
    attribution = AttributionClass.INPUT

    def __init__(self, kind: str, text: str, position: int | None, remedy: str) -> None:
        self.kind = kind
        self.text = text
        self.position = position
        self.remedy = remedy
        super().__init__(f"{_shown(text, position)}: {remedy}")


def _shown(text: str, position: int | None) -> str:
    at = position or 0
    start, end = max(0, at - _SHOWN), at + _SHOWN
    excerpt = ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
    if position is None:
        return repr(excerpt)
    if position >= len(text):
        return f"end of {excerpt!r}"
    return f"character {position} ({text[position]!r}) of {excerpt!r}"
