"""Threads for handlers: started when needed, used again, and never a piece of work lost."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from capdag.cartridge import _workers
from capdag.cartridge._workers import Workers


class Bench:
    """Workers, and work that waits until it is let go."""

    def __init__(self) -> None:
        self.idle = threading.Event()
        self.workers = Workers(self.idle.set)
        self.go = threading.Event()
        self.ran: list[str] = []

    def wait(self) -> None:
        self.go.wait(5)
        self.ran.append(threading.current_thread().name)

    def settle(self) -> None:
        """Wait until nothing runs."""
        assert self.idle.wait(5)
        self.idle.clear()
        assert self.workers.busy == 0


def test_all_work_runs_at_once_and_threads_are_used_again() -> None:
    bench = Bench()
    for _ in range(20):
        bench.workers.run(bench.wait)
    assert bench.workers.busy == 20
    bench.go.set()
    bench.settle()
    assert len(set(bench.ran)) == 20
    first = set(bench.ran)
    bench.ran.clear()
    for _ in range(5):
        bench.workers.run(bench.wait)
        bench.settle()
    assert set(bench.ran) <= first


def test_an_idle_thread_keeps_nothing_alive() -> None:
    class Load:
        def __call__(self) -> None: ...

    bench, load = Bench(), Load()
    bench.workers.run(load)
    bench.settle()
    gone = weakref.ref(load)
    del load
    gc.collect()
    assert gone() is None


def test_without_threads_left_work_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.workers.run(bench.wait)

    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_workers, "Thread", NoThread)
    bench.workers.run(bench.wait)
    bench.workers.run(bench.wait)
    assert bench.workers.busy == 3
    bench.go.set()
    bench.settle()
    assert len(bench.ran) == 3
    assert len(set(bench.ran)) == 1


def test_without_any_thread_there_is_no_going_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_workers, "Thread", NoThread)
    bench = Bench()
    with pytest.raises(RuntimeError, match="can't start"):
        bench.workers.run(bench.wait)
    assert bench.workers.busy == 0
