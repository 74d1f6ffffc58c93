"""What the language of capabilities costs, from a parse to a choice among 10,000 caps, beside the public package."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter, process_time
from types import TracebackType
from typing import Any, Self

from capdag.urn import CapTable, CapUrn, MediaUrn, TaggedUrn, UrnError

from .rounds import measure, report, time_loops

ROOT = Path(__file__).parents[1]
PEER_PYTHON = ROOT / ".venv-peer" / "bin" / "python"
CAPS = 10_000
CHAT_IN, CHAT_OUT = "media:chat-request;enc=utf-8;fmt=json;record", "media:chat-event;list;record"


def chat_cap(number: int) -> str:
    """Return the cap of a chat model, as llama.cpp's cartridge advertises it."""
    return (
        f'cap:chat;ctx-2k;ctx-4k;ctx-8k;in="{CHAT_IN}";json-schema;logprobs;model=org/model-{number}-instruct;'
        f'out="{CHAT_OUT}";tools'
    )


class PublicPackage:
    """The public package in its own environment, asked over pipes."""

    def __enter__(self) -> Self:
        if not PEER_PYTHON.exists():
            sys.exit("the public package has no environment here: run the README's test command, which makes it")
        command = [str(PEER_PYTHON), "-P", str(ROOT / "benchmarks" / "urn_peer.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()

    def ask(self, question: str, **facts: Any) -> float:
        """Return the figure that answers a question, one of the methods of `urn_peer.Answers`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"ask": question, **facts}) + "\n")
        self._process.stdin.flush()
        return float(json.loads(self._process.stdout.readline()))


def main() -> None:
    """Print the tables, one after another: about three minutes, nearly all of them the public package's."""
    with PublicPackage() as public:
        _report_parse(public)
        _report_dispatch(public)
        _report_memory(public)
        _report_look_ups(public)
    _report_sizes()
    _report_growth()


def _report_parse(public: PublicPackage) -> None:
    numbers = count(CAPS)

    def ours(text: Callable[[int], str]) -> float:
        texts = [text(next(numbers)) for _ in range(300)]
        return time_loops(lambda loops: [CapUrn.parse(text) for text in texts[:loops]], len(texts)) * 1e6

    variants = {
        "public package": lambda: public.ask("parse", texts=[chat_cap(next(numbers)) for _ in range(100)]) * 1e6,
        "ours, nothing of it seen before": lambda: ours(lambda n: chat_cap(n).replace("chat-", f"chat-{n}-")),
        "ours, its media seen before": lambda: ours(chat_cap),
        "ours, seen before": lambda: ours(lambda _: chat_cap(0)),
    }
    base = "ours, nothing of it seen before"
    report(f"parse a cap of {len(chat_cap(CAPS))} characters", "us", measure(variants), base)


def _report_dispatch(public: PublicPackage) -> None:
    candidate, request = chat_cap(7), _named(7)
    cap, asked = CapUrn.parse(candidate), CapUrn.parse(request)

    def ours(loops: int) -> None:
        for _ in range(loops):
            cap.is_dispatchable(asked)

    variants = {
        "public package": lambda: public.ask("dispatch", candidate=candidate, request=request, loops=200) * 1e6,
        "ours": lambda: time_loops(ours, 5_000) * 1e6,
    }
    report("may one parsed cap serve one parsed request", "us", measure(variants), "ours")


def _report_memory(public: PublicPackage) -> None:
    begin, amount = 10 * CAPS, 1_000
    figures = {
        "public package, parsed caps": [public.ask("hold", texts=[chat_cap(n) for n in range(begin, begin + amount)])],
        "ours, texts, caps and table": [_memory(begin)],
    }
    report(f"memory a cap, of {CAPS:,} (public: {amount:,})", "bytes", figures, "ours, texts, caps and table")


def _memory(begin: int) -> float:
    tracemalloc.start()
    table = _table(CAPS, begin)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / len(table)


def _table(size: int, begin: int = 0) -> CapTable[int]:
    table: CapTable[int] = CapTable()
    for number in range(begin, begin + size):
        table.register(CapUrn.parse(chat_cap(number)), number % 50)
    return table


def _named(number: int) -> str:
    """Return the request for one model."""
    return f'cap:chat;in="{CHAT_IN}";model=org/model-{number}-instruct;out="{CHAT_OUT}"'


_REQUESTS = {
    "one model by name": _named(CAPS // 2),
    "any chat model: all serve": "cap:chat",
    "a model that nobody has": _named(CAPS + 1),
    "an absence that nobody has": "cap:chat;!tools",
    "an absence alone": "cap:!tools",
    "two absences, one of them common": "cap:chat;!logprobs;!vision",
    "a value to avoid, common input": f'cap:chat;in="{CHAT_IN}";model!=x;!json-schema',
    "an input that nobody takes": 'cap:chat;in="media:enc=utf-8;fmt=json;text"',
    "an output that nobody gives": f'cap:chat;out="{CHAT_OUT};!signed"',
}


def _report_look_ups(public: PublicPackage) -> None:
    table = _table(CAPS)

    def first(request: CapUrn) -> Callable[[], float]:
        # The median of several: one of a few microseconds is at the mercy of the clock.
        return lambda: median(_first(table, request) for _ in range(31)) * 1e6

    print(f"\n(the public switch is given {CAPS:,} caps now, which takes it a minute or two)", file=sys.stderr)
    attached = public.ask("attach", caps=[chat_cap(number) for number in range(CAPS)])
    refused, base = "an absence that nobody has", "one model by name"
    variants = {
        **{name: first(CapUrn.parse(request)) for name, request in _REQUESTS.items()},
        "slowest of 300, all at random": _slowest_at_random,
        "any of them, repeated": lambda: time_loops(_repeat(table, _named(CAPS // 2)), 5_000) * 1e6,
        "public switch: that absence": lambda: public.ask("choose", cap=_REQUESTS[refused]) * 1e6,
    }
    print(f"\nthe public switch took {attached:,.0f} s to attach hosts with {CAPS:,} caps")
    report(f"first look-up after a change, {CAPS:,} caps", "us", measure(variants, rounds=3), base)


_FORMS = ("*", "*", "v", "w", "!=v", "?=v", "!", "?")


def _slowest_at_random() -> float:
    """Return the time of the slowest of 300 random requests to a table of random caps."""
    rng = Random(1)

    def tags(least: int, most: int) -> dict[str, str]:
        return {f"k{key}": rng.choice(_FORMS) for key in rng.sample(range(40), rng.randint(least, most))}

    def cap() -> CapUrn:
        return CapUrn(MediaUrn(tags(0, 4)), MediaUrn(tags(0, 3)), tags=tags(1, 8))

    table: CapTable[int] = CapTable()
    for number in range(CAPS):
        table.register(cap(), number)
    # The best of three for each: the slowest should be slow by itself, not for what else the machine did.
    return max(min(_first(table, request) for _ in range(3)) for request in [cap() for _ in range(300)]) * 1e6


def _first(table: CapTable[int], request: CapUrn) -> float:
    table.retire(table.register(CapUrn.parse("cap:changed"), -1))
    start = perf_counter()
    table.best_match(request)
    return perf_counter() - start


def _repeat(table: CapTable[int], request: str) -> Callable[[int], None]:
    def run(loops: int) -> None:
        for _ in range(loops):
            table.best_match(request)

    return run


def _report_sizes() -> None:
    sizes = (10, 1_000, CAPS)
    tables = {size: _table(size) for size in sizes}
    repeated = {
        f"{size:,} caps": lambda size=size: time_loops(_repeat(tables[size], _named(5)), 5_000) * 1e6 for size in sizes
    }
    report("repeated look-up", "us", measure(repeated), f"{sizes[0]} caps")
    changed = {
        f"{size:,} caps": lambda size=size: (
            median(_first(tables[size], CapUrn.parse(_named(5))) for _ in range(31)) * 1e6
        )
        for size in sizes
    }
    report("first look-up after a change", "us", measure(changed), f"{sizes[0]} caps")


_HOSTILE: dict[str, Callable[[int], str]] = {
    "tags in falling order": lambda n: "t:" + ";".join(f"k{n - i:07}" for i in range(n // 64)),
    "tags that share 60 letters": lambda n: "t:" + ";".join(f"{'k' * 52}{i:08}" for i in range(n // 64)),
    "one long key": lambda n: "t:" + "k" * (n - 2),
    "one long quoted value": lambda n: 't:k="' + "V " * (n // 2 - 3) + '"',
    "escapes only": lambda n: 't:k="' + r"\\" * (n // 2 - 3) + '"',
    "a cap in media in a cap": lambda n: 'cap:x;in="media:k=' + r"\"" + r"\\\\" * (n // 4 - 8) + r"\"" + '"',
    "nothing but separators": lambda n: "t:" + ";" * (n - 2),
    "a quote that never ends": lambda n: 't:k="' + r"\"" * (n // 2 - 3),
    "marks without end": lambda n: "t:k=" + "?!" * (n // 2 - 2),
    "a fault after much": lambda n: "t:" + "k" * (n - 3) + ",",
    "a key again after many": lambda n: "t:" + ";".join(f"k{i:07}" for i in range(n // 64)) + ";k0000000",
    "letters with a long lower case": lambda n: "t:k=" + "İΣ" * (n // 2 - 2),
}


def _report_growth() -> None:
    """Print what a doubling costs: 2 is linear, 2.2 is n log n at these sizes, 4 would be quadratic."""
    sizes = (16_384, 32_768, 65_536)
    print("\nhostile texts  (us of CPU for 16, 32 and 64 Ki characters; growth for the last doubling)")
    for name, text in _HOSTILE.items():
        variants = {str(size): _reading(text(size)) for size in sizes}
        # The least of many: growth is of what a text costs, not of what else the machine did meanwhile.
        figures = [min(values) for values in measure(variants).values()]
        shown = "".join(f"{figure:>10.1f}" for figure in figures)
        print(f"  {name:<34} {shown}  x{figures[2] / figures[1]:.2f}")


def _reading(text: str) -> Callable[[], float]:
    parse = CapUrn.parse if text.startswith("cap:") else TaggedUrn.parse

    def once() -> float:
        start = process_time()
        with suppress(UrnError):
            parse(text)
        return process_time() - start

    return lambda: min(once() for _ in range(20)) * 1e6
