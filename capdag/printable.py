"""What others have written, as people see it: it acts on no terminal, passes for no line of ours, and fills no screen.

Whatever comes from a cartridge, a host, a client or a file goes through here before a person reads it.
"""

from __future__ import annotations

import json

LONGEST_LINE = 2_000
"""Characters of a line that are shown."""

MOST_LINES = 40
"""Lines of one text that are shown: a quarter from its beginning, where it says what it is, and the rest from its end,
where a traceback tells what happened."""

_INDENT = "    "


def printable(text: str, longest: int | None = None) -> str:
    """Return a text as one line: what is not printable, line breaks too but no tabs, as backslash escapes; cut after
    `longest` characters, if that is given."""
    cut = longest is not None and len(text) > longest
    shown = text[:longest] if cut else text
    if not shown.isprintable():
        shown = "".join(letter if letter.isprintable() or letter == "\t" else ascii(letter)[1:-1] for letter in shown)
    return shown + "…" if cut else shown


def printable_lines(text: str, longest: int | None = None) -> str:
    """Return a text of many lines, each made printable and cut after `longest` characters; a carriage return ends a
    line as a line break does."""
    lines = [printable(line, longest) for line in text.splitlines()]
    return "\n".join([*lines, ""] if text.endswith("\n") else lines)


def paragraph(text: str) -> str:
    """Return a text made printable and bounded in length and lines. Lines after the first are indented: they cannot be
    taken for others than this text's."""
    if len(text) <= LONGEST_LINE and text.isprintable():
        return text
    lines = text.splitlines() or [""]
    if len(lines) > MOST_LINES:
        first = MOST_LINES // 4
        last = MOST_LINES - first
        lines = [*lines[:first], f"… {len(lines) - first - last} lines are left out …", *lines[-last:]]
    return f"\n{_INDENT}".join(printable(line, LONGEST_LINE) for line in lines)


def printable_json(value: object, indent: int | None = None) -> str:
    """Return JSON in which letters stand as they are, and all that is not printable as JSON's own escapes."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)
