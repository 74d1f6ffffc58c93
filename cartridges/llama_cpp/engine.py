"""llama.cpp as this cartridge uses it: loaded at the first request, streaming always, cancelled in every phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Condition
from typing import Any, Final, Protocol

from capdag.cartridge import CartridgeError
from capdag.errors import AttributionClass

from .answer import Answer
from .loading import load
from .request import EngineRequest, engine_refusal, read_chat, read_completion
from .room import Room, room_of
from .settings import Settings
from .slots import Cancellable, Slots, wait_until, wake_on_cancel

_REPORT_EVERY: Final = 0.25
"""Seconds between two reports of how far a prompt is."""

Handle = Callable[[bytes, Callable[[bytes], bool]], object]
"""A method of llama.cpp's server: takes a body and a callback that returns true to cancel; blocks until the end."""


class AnswerStream(Protocol):
    """Where an answer goes: `capdag.cartridge.Output` is one."""

    def open(self) -> None: ...

    def item(self, item: Any) -> None: ...


class Caller(Cancellable, Protocol):
    """Who asks: `capdag.cartridge.Request` is one."""

    @property
    def output(self) -> AnswerStream: ...

    def progress(self, fraction: float, message: str) -> None: ...

    def log(self, level: str, message: str, attribution: AttributionClass) -> None: ...


class Engine:
    """One model. All methods may be called from any thread, and block theirs.

    `room` is what its requests have, where that is known already.
    """

    def __init__(self, settings: Settings, room: Room | None = None) -> None:
        self._settings = settings
        self._room = room or room_of(settings, None)
        self._slots = Slots(settings.slots)
        self._server: Any = None
        self._loading: _Loading | None = None
        self._changed = Condition()

    def chat(self, body: bytes, caller: Caller) -> None:
        """Answer an OpenAI chat body: events of text, finish and usage on the caller's output, opened once template and
        token count have passed.

        Loads the model first if need be. Raises CartridgeError, or what the caller raises once it is cancelled.
        """
        request = read_chat(body, self._room)
        self._answer(request, caller, lambda server: server.handle_chat_completions)

    def complete(self, body: bytes, caller: Caller) -> None:
        """Answer an OpenAI completion body, in the same events as `chat`."""
        request = read_completion(body, self._room)
        self._answer(request, caller, lambda server: server.handle_completions)

    def _answer(self, request: EngineRequest, caller: Caller, method: Callable[[Any], Handle]) -> None:
        if request.ignored:
            caller.log("info", f"ignored, not known here: {', '.join(request.ignored)}", AttributionClass.INPUT)
        handle = method(self._loaded(caller))
        with self._slots.turn(min(request.choices, self._settings.slots), caller) as turn:
            run = _Run(request, caller, lambda: self._slots.prompt_done(turn))
            try:
                handle(request.body, run.receive)
            except (ValueError, RuntimeError) as error:
                raise engine_refusal(str(error), request.prompt_field) from None
            run.close()

    def _loaded(self, caller: Caller) -> Any:
        """Return the server, loaded if need be: by one caller, while the others wait and share how it ends.

        The next caller takes over from one that is cancelled, and tries again after a failure.
        """
        wake_on_cancel(self._changed, caller)
        with self._changed:
            while self._server is None and self._loading is not None:
                self._join(self._loading, caller)
            if self._server is not None:
                return self._server
            loading = self._loading = _Loading()
        started = time.monotonic()
        try:
            self._server = load(self._settings, _reporter(caller))
        except CartridgeError as error:
            loading.failure = error
            raise
        finally:
            with self._changed:
                self._loading = None
                self._changed.notify_all()
        caller.progress(1.0, f"loaded {self._settings.model} in {time.monotonic() - started:.1f} s")
        return self._server

    def _join(self, loading: _Loading, caller: Caller) -> None:
        wait_until(lambda: loading is not self._loading, self._changed, caller)
        if loading.failure is not None:
            raise loading.failure


class _Loading:
    """One attempt to load the model. `failure` is how it failed, None if it did not or was given up."""

    failure: CartridgeError | None = None


def _reporter(caller: Caller) -> Callable[[float, str], None]:
    def report(fraction: float, message: str) -> None:
        caller.check_cancelled()
        caller.progress(fraction, message)

    return report


class _Run:
    """One request inside llama.cpp: takes its chunks in the thread that asked, hands the events on, and tells
    llama.cpp to stop when the caller is cancelled or anything fails."""

    def __init__(self, request: EngineRequest, caller: Caller, on_prompt_done: Callable[[], None]) -> None:
        self._answer = Answer(request)
        self._caller = caller
        self._on_prompt_done = on_prompt_done
        self._reported = time.monotonic()
        self._failure: Exception | None = None

    def receive(self, chunk: bytes) -> bool:
        """Take a chunk. True cancels: llama.cpp looks at nothing else, and swallows what a callback raises."""
        try:
            self._caller.check_cancelled()
            self._take(chunk)
        except Exception as error:  # noqa: BLE001 - raised again by close, where it is not swallowed
            self._failure = error
        return self._failure is not None

    def close(self) -> None:
        """End the answer when llama.cpp has returned. Raises what `receive` met."""
        if self._failure is not None:
            raise self._failure
        self._caller.check_cancelled()
        self._caller.output.item(self._answer.close())

    def _take(self, chunk: bytes) -> None:
        answer = self._answer
        was_accepted, was_in_prompt = answer.accepted, answer.in_prompt
        events: list[Mapping[str, Any]] = list(answer.read(chunk))
        if not was_accepted:
            self._caller.output.open()
        if was_in_prompt:
            if answer.in_prompt:
                self._report_prompt()
            else:
                self._on_prompt_done()
        for event in events:
            self._caller.output.item(event)

    def _report_prompt(self) -> None:
        done, total = self._answer.prompt
        if total and time.monotonic() - self._reported >= _REPORT_EVERY:
            self._reported = time.monotonic()
            self._caller.progress(done / total, f"reading the prompt: {done:,} of {total:,} tokens")
