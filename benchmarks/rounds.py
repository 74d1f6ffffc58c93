"""Interleaved rounds: variants run in turn, so that a machine whose speed drifts still gives true ratios."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter

ROUNDS = 7


def time_loops(run: Callable[[int], object], loops: int) -> float:
    """Return the seconds one loop takes, measured over `loops` of them."""
    start = perf_counter()
    run(loops)
    return (perf_counter() - start) / loops


def measure(variants: Mapping[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Run every variant once a round, in turn; each returns its figure. The first round warms up and is not kept."""
    figures: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, variant in variants.items():
            gc.collect()
            figure = variant()
            if number:
                figures[name].append(figure)
    return figures


def ratio(values: Sequence[float], base: Sequence[float]) -> float:
    """Return the median of the ratios of two figures, taken pair by pair."""
    return median(value / other for value, other in zip(values, base, strict=True))


def report(title: str, unit: str, figures: Mapping[str, list[float]], base: str) -> None:
    """Print one table: median [min..max] of each variant, and its ratio to `base`, pair by pair, as a median."""
    print(f"\n{title}  ({unit}; ratio to {base})")
    for name, values in figures.items():
        beside = ratio(values, figures[base])
        print(f"  {name:<34} {median(values):>10.2f} [{min(values):.2f}..{max(values):.2f}]  x{beside:.2f}")
