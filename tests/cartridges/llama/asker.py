"""Who asks the engine in tests: the part of a request that the engine needs, cancelled when a test says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

from cartridges.llama_cpp.engine import Engine

PATIENCE = 20.0
"""Seconds a test waits for what must come."""


class CancelledError(Exception):
    """The asker was cancelled."""


class Asker:
    """Asks an engine and keeps what comes: `items`, the progress, the log, and how it ended.

    `watch` is called in the engine's thread for each of "open", "item", "progress", after it has been recorded.
    """

    def __init__(self, watch: Callable[[Asker, str], object] = lambda asker, what: None) -> None:
        self.output = self
        self.items: list[dict[str, Any]] = []
        self.opened = Event()
        self.reports: list[tuple[float, str]] = []
        self.logs: list[tuple[str, str]] = []
        self.failure: Exception | None = None
        self.ended = Event()
        self._watch = watch
        self._cancelled = Event()
        self._callbacks: list[Callable[[], object]] = []

    # What the engine sees

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def check_cancelled(self) -> None:
        if self.cancelled:
            raise CancelledError

    def on_cancel(self, callback: Callable[[], object]) -> None:
        self._callbacks.append(callback)

    def progress(self, fraction: float, message: str) -> None:
        self.reports.append((fraction, message))
        self._watch(self, "progress")

    def log(self, level: str, message: str, attribution: object) -> None:
        self.logs.append((level, message))

    def open(self) -> None:
        self.opened.set()
        self._watch(self, "open")

    def item(self, item: Any) -> None:
        self.items.append(dict(item))
        self._watch(self, "item")

    # What tests do

    def cancel(self) -> None:
        """Cancel, as the SDK does: the flag first, then the callbacks."""
        self._cancelled.set()
        for callback in self._callbacks:
            callback()

    def chat(self, engine: Engine, text: str = "hi", **fields: Any) -> Asker:
        """Ask for a chat answer and wait for it; raises what the engine raises."""
        engine.chat(json.dumps({"messages": [{"role": "user", "content": text}], **fields}).encode(), self)
        return self

    def complete(self, engine: Engine, prompt: Any, **fields: Any) -> Asker:
        """Ask for a completion and wait for it; raises what the engine raises."""
        engine.complete(json.dumps({"prompt": prompt, **fields}).encode(), self)
        return self

    def start(self, ask: Callable[[], object]) -> Asker:
        """Ask in a thread of its own."""

        def run() -> None:
            try:
                ask()
            except Exception as error:  # noqa: BLE001 - raised again by wait
                self.failure = error
            finally:
                self.ended.set()

        Thread(target=run, daemon=True).start()
        return self

    def wait(self) -> Asker:
        """Wait for what `start` began; raises what the engine raised."""
        assert self.ended.wait(PATIENCE), "no end"
        if self.failure is not None:
            raise self.failure
        return self

    def text(self, choice: int = 0) -> str:
        """Return the text of a choice."""
        return "".join(item["text"] for item in self.items if "text" in item and item.get("choice", 0) == choice)

    def finishes(self) -> dict[int, str]:
        """Return how each choice finished."""
        return {item.get("choice", 0): item["finish"] for item in self.items if "finish" in item}

    @property
    def usage(self) -> dict[str, Any]:
        """The usage, which must be the last event."""
        usage: dict[str, Any] = self.items[-1]["usage"]
        return usage
