"""From a cartridge's events to bytes for the client: chunk by chunk, or one whole body. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .answer import Answer, Delta
from .shapes import Shape, WholeChoice
from .sse import DONE, dump, event


class Heading(NamedTuple):
    """What every chunk and every body of one answer says: its id, when (unix seconds) and by which model."""

    id: str
    created: int
    model: str

    def under(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the object of type `kind` with these choices."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


class StreamedAnswer:
    """Renders events as the chunks of a stream (client contract, OpenAI stream)."""

    def __init__(self, shape: Shape, heading: Heading, choices: int, *, include_usage: bool) -> None:
        self._shape = shape
        self._heading = heading
        self._answer = Answer(choices, shape.text_fields, tools=shape.tools)
        self._choices = choices
        self._include_usage = include_usage
        self._opened = 0
        self._before_text, self._after_text = self._around_text()
        self._plain = False

    def _around_text(self) -> tuple[bytes, bytes]:
        """Return what stands around the text in a plain chunk of choice 0: all that a token needs is its JSON."""
        mark = "\0"
        chunk = self._event(self._shape.piece(Delta(0, self._shape.text_fields["text"], mark)))
        before, _, after = chunk.rpartition(dump(mark))
        return before, after

    def render(self, events: Iterable[object]) -> bytes:
        """Return the chunks for events that are ready together. Raises RequestFailedError for a broken answer."""
        parts: list[bytes] = []
        for value in events:
            if self._plain and type(value) is dict and len(value) == 1:
                text = value.get("text")
                if type(text) is str and text:
                    self._answer.passed(0, text)
                    parts += (self._before_text, dump(text), self._after_text)
                    continue
            for delta in self._answer.take(value):
                self._open_choices(delta.choice + 1, parts)
                parts.append(self._event(self._shape.piece(delta)))
            self._plain = self._opened > 0 and self._answer.is_open(0)
        return b"".join(parts)

    def heartbeat(self, queue_position: int | None = None) -> bytes:
        """Return a chunk that says nothing; the first one opens the first choice.

        Where the request stands in line is a field beside the choices, which clients pass over.
        """
        parts: list[bytes] = []
        self._open_choices(1, parts)
        self._plain = self._answer.is_open(0)
        if queue_position is not None:
            silence = self._heading.under(self._shape.chunk_object, [dict(self._shape.silence())])
            parts.append(event({**silence, "queue_position": queue_position}))
        return b"".join(parts) or self._event(self._shape.silence())

    def end(self) -> bytes:
        """Return the end of a complete answer. Raises RequestFailedError if something is missing.

        The finish reasons wait until now: a client that has one takes the answer for whole, whatever follows.
        """
        self._answer.check_complete()
        parts: list[bytes] = []
        self._open_choices(self._choices, parts)
        for index in range(self._choices):
            parts.append(self._event(self._shape.closing(index, self._answer.finish_of(index))))
        if self._include_usage:
            last = self._heading.under(self._shape.chunk_object, [])
            parts.append(event({**last, **_figures(self._answer)}))
        parts.append(DONE)
        return b"".join(parts)

    def _open_choices(self, wanted: int, parts: list[bytes]) -> None:
        """Open choices in the order of their indices: some clients keep them in a list."""
        while self._opened < wanted:
            opening = self._shape.opening(self._opened)
            if opening is not None:
                parts.append(self._event(opening))
            self._opened += 1

    def _event(self, choice: Mapping[str, Any]) -> bytes:
        return event(self._heading.under(self._shape.chunk_object, [dict(choice)]))


class WholeAnswer:
    """Collects events into one body."""

    def __init__(self, shape: Shape, heading: Heading, choices: int) -> None:
        self._shape = shape
        self._heading = heading
        self._answer = Answer(choices, shape.text_fields, tools=shape.tools)
        self._texts: list[dict[str, list[str]]] = [{} for _ in range(choices)]
        self._tokens: list[list[Mapping[str, Any]]] = [[] for _ in range(choices)]

    def take(self, events: Iterable[object]) -> None:
        """Take events. Raises RequestFailedError for a broken answer."""
        for value in events:
            for delta in self._answer.take(value):
                if isinstance(delta.value, str):
                    self._texts[delta.choice].setdefault(delta.field, []).append(delta.value)
                if delta.logprobs is not None:
                    self._tokens[delta.choice] += delta.logprobs["content"]

    def body(self) -> bytes:
        """Return the body of the complete answer. Raises RequestFailedError if something is missing."""
        self._answer.check_complete()
        choices = [
            self._shape.whole(
                WholeChoice(
                    index,
                    {field: "".join(pieces) for field, pieces in texts.items()},
                    self._answer.calls_of(index),
                    {"content": self._tokens[index]} if self._tokens[index] else None,
                    self._answer.finish_of(index),
                )
            )
            for index, texts in enumerate(self._texts)
        ]
        whole = self._heading.under(self._shape.whole_object, choices)
        return dump({**whole, **_figures(self._answer)})


def _figures(answer: Answer) -> dict[str, Any]:
    """Return usage, and timings if the engine has them: an object or absent, never null."""
    figures: dict[str, Any] = {"usage": answer.usage}
    if answer.timings is not None:
        figures["timings"] = answer.timings
    return figures
