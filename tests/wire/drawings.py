"""protocol-spec/states.md, drawn from the tables. `python -m tests.wire.drawings` writes it; a test compares."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from capdag.wire import FrameType
from capdag.wire.life import Cell, Table
from capdag.wire.link_life import LINK_LIFE, LinkState
from capdag.wire.request_life import REQUEST_LIFE, RequestState, Side
from capdag.wire.stream_life import RECEIVER_LIFE, SENDER_LIFE, STREAM_LIFE, StreamState, WindowState

PAGE = Path(__file__).parents[2] / "protocol-spec" / "states.md"

_HEAD = """\
# Life cycles

Drawn from the tables that our own code runs on (`python -m tests.wire.drawings` writes this page, and a
test compares). Each table is total: for every event in every state it says what a receiver does, and after the
arrow where it stands then. The drawings leave out what changes nothing. What the words of the frames mean is in
[wire.md](wire.md).

| verdict | what a receiver does |
| --- | --- |
| take | it belongs here |
| drain | its request is being ended: count it, give its credit back, pass nothing on |
| count | nothing waits for it: count it (a straggler if its request ended lately, else a drop) |
| refuse | answer it with ERR; nothing else changes |
| violate | its sender broke the protocol: the link is over, or the request |
| elsewhere | it is no part of this request: the table of its link judges it, or it is another request of the same id |
| wait | it cannot be done now |
"""

_LINKS = """
## Links

A link has two senders, and each has a table of its own that its receiver goes by. `REQ for identity` is a REQ whose
cap is exactly `cap:effect=none`; `identity proved` is the answer to it, once it has been compared; a `malformed
frame` is one that cannot be decoded, or a HELLO or RELAY_NOTIFY that lacks what it needs.
"""

_REQUESTS = """
## Requests

The same for everybody along the way of a request: who asked, who answers, and every router between. After `none`
nothing is kept but the id, among the last 4,096 that ended. CREDIT is the requester's if its meta.credit_dir is
`response`, and the handler's if it is `request`; one without is counted. `refuse` for a second REQ holds where an ERR
can be told from one for the first: under another XID. Under the same RID and XID it is dropped and counted (L15).

A request is over, too, when its streams break a rule of the next section, or a CHUNK has no credit. Whoever finds it
ends it: the handler with ERR, the requester with CANCEL, a router with ERR to the requester and CANCEL to the handler
([wire.md](wire.md#errors)).
"""

_STREAMS = """
## Streams

One stream of one direction of a request, at whoever reads it: the handler that of a body, the requester that of an
answer. A router need not know any of it: it looks at credit, the number of streams and sizes alone (L22). A CHUNK of
a sequence that leaves an item unfinished moves the stream inside the item; END is that of the stream's own
direction.
"""

_WINDOWS = """
## Credit

The two ends of one stream's window. A grant never lifts either above the initial window.
"""


def _transitions(table: Table[Any, Any]) -> Iterator[tuple[StrEnum, StrEnum, list[str]]]:
    """Yield what leads from one state to another, and the events that do."""
    for state, row in table.items():
        ways: dict[StrEnum, list[str]] = {}
        for event, cell in row.items():
            if cell.to not in (None, state):
                ways.setdefault(cell.to, []).append(_named(event))
        for to, events in ways.items():
            yield state, to, events


def _named(event: StrEnum | tuple[Side, FrameType]) -> str:
    return event.value if isinstance(event, StrEnum) else f"{event[1].name} by the {event[0]}"


def _drawing(table: Table[Any, Any], start: StrEnum) -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start.name}"]
    lines += [f'    state "{state.value}" as {state.name}' for state in table]
    for state, to, events in _transitions(table):
        shown = ", ".join(events) if len(events) < 7 else f"any of {len(events)} others, see the table"
        lines.append(f"    {state.name} --> {to.name}: {shown}")
    return "\n".join([*lines, "```"])


def _shown(cell: Cell[Any], state: StrEnum) -> str:
    moves = cell.to is not None and cell.to is not state
    return f"{cell.verdict} → {cell.to}" if moves else str(cell.verdict)


def _matrix(table: Table[Any, Any]) -> str:
    states = list(table)
    lines = [f"| event | {' | '.join(state.value for state in states)} |", "| --- " * (len(states) + 1) + "|"]
    for event in table[states[0]]:
        shown = (_shown(table[state][event], state) for state in states)
        lines.append(f"| {_named(event)} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _words(table: Table[Any, Any]) -> str:
    """List what the refusals and violations of a table say."""
    words = {
        f"{cell.verdict} {cell.code}".strip() + f": {_plain(cell.why)}"
        for row in table.values()
        for cell in row.values()
        if cell.why
    }
    return "\n".join(f"- {line}" for line in sorted(words) if not line.endswith(": TYPE"))


def _plain(why: str) -> str:
    return why.replace("{type}", "TYPE").replace("{stream}", "S").replace("{direction}", "one side to the other")


def page() -> str:
    """Return the whole page."""
    parts = [_HEAD, _LINKS]
    for direction, link in LINK_LIFE.items():
        title = f"### {direction.value.capitalize()}"
        parts += [title, _drawing(link, LinkState.SILENT), _matrix(link), _words(link)]
    for text, table, start in (
        (_REQUESTS, REQUEST_LIFE, RequestState.NONE),
        (_STREAMS, STREAM_LIFE, StreamState.NONE),
    ):
        parts += [text, _drawing(table, start), _matrix(table), _words(table)]
    parts.append(_WINDOWS)
    for title, window in (("### The sender", SENDER_LIFE), ("### The receiver", RECEIVER_LIFE)):
        parts += [title, _drawing(window, WindowState.CREDIT), _matrix(window)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
