"""The declaration of a cartridge of ours whose handlers are named after the functions of `vocabulary`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from capdag.cartridge import Cartridge
from tests.interop import vocabulary


def declared(*handlers: Callable[[Any], object]) -> Cartridge:
    """Return a cartridge with these handlers, under the name and with the capacity of its environment."""
    cartridge = Cartridge(
        os.environ[vocabulary.NAME_VARIABLE],
        version="1.0.0",
        description="ours",
        capacity=int(os.environ.get(vocabulary.CAPACITY_VARIABLE, "0")),
    )
    for handler in handlers:
        name = handler.__name__
        stream = {"media_urn": vocabulary.OCTETS, "is_sequence": name in vocabulary.SEQUENCES}
        cartridge.add_cap(
            vocabulary.cap(name, cartridge.name),
            handler,
            title=vocabulary.FUNCTIONS[name],
            aliases=[name],
            args=[{**stream, "name": "input", "required": True, "sources": [{"stdin": vocabulary.OCTETS}]}],
            outputs=[{**stream, "name": "output", "output_description": "the answer"}],
        )
    return cartridge
