"""How much room the requests of a model have, and the early refusal of what cannot fit.

llama.cpp reads a prompt's text in one go, about 1 MB a second, and nothing stops it meanwhile: neither a cancel, nor
that the prompt was too long after its first part. So what no reading could make fit is refused before, and of long
texts those too that only nearly empty ones, such as runs of spaces, could be read into the context.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from capdag.cartridge import CartridgeError
from capdag.errors import AttributionClass
from capdag.models import ModelFacts

from .settings import Settings

_LONGEST_TOKEN: Final = 1024
"""Bytes of a token where the model does not say, and the most that is believed: no vocabulary has longer ones."""

_READ_QUICKLY: Final = 1_000_000
"""Bytes of text that are read in about a second; above it texts must be as dense as texts are."""

_DENSE: Final = 16
"""Bytes of text that a token has on the average at most. Prose has about 4, deeply indented program text 8."""


class Room(NamedTuple):
    """`context` is the tokens of one request, prompt and answer together; `slots` how many requests run at once;
    `longest_token` the most bytes of text that one token stands for."""

    slots: int
    context: int
    longest_token: int

    def check_text(self, field: str, pieces: Iterable[str], turns: int = 1) -> int:
        """Raise CartridgeError CONTEXT_LENGTH_EXCEEDED if texts cannot be one prompt; else return the tokens
        that they take at least.

        `turns` is how many messages the texts are: each takes a token at least, however short it is.
        """
        if turns > self.context:
            raise self._too_long(field, f"{turns:,} messages", turns, f"{self.context:,} messages", self.context)
        most = min(self.context * self.longest_token, max(_READ_QUICKLY, self.context * _DENSE))
        size = sum(len(piece.encode()) for piece in pieces)
        if size > most:
            raise self._too_long(field, f"{size:,} bytes of text", size, f"{most:,} bytes", most)
        return max(turns, -(-size // self.longest_token))

    def check_prompts(self, field: str, prompts: Iterable[str | list[int]]) -> None:
        """Raise CartridgeError CONTEXT_LENGTH_EXCEEDED if a prompt, of text or of token ids, can in no way fit, or if
        all of them are more than the model can hold at once: llama.cpp reads them all before the first runs."""
        total = 0
        for prompt in prompts:
            if isinstance(prompt, str):
                total += self.check_text(field, [prompt])
            elif len(prompt) <= self.context:
                total += len(prompt)
            else:
                raise self._too_long(
                    field, f"{len(prompt):,} token ids", len(prompt), f"{self.context:,} ids", self.context
                )
        most = self.slots * self.context
        if total > most:
            raise CartridgeError(
                "CONTEXT_LENGTH_EXCEEDED",
                f"the prompts come to {total:,} tokens or more and this model takes at most {most:,} in one request, "
                "all prompts together: send them in several requests",
                AttributionClass.INPUT,
                {"param": field, "limit": most, "seen": total},
            )

    def _too_long(self, field: str, what: str, seen: int, most: str, limit: int) -> CartridgeError:
        return CartridgeError(
            "CONTEXT_LENGTH_EXCEEDED",
            f"{field} come to {what} and one request of this model has {self.context:,} tokens, prompt and answer "
            f"together, for which at most {most} are taken: shorten {field}, or raise `context` in the model's "
            "settings",
            AttributionClass.INPUT,
            {"param": field, "limit": limit, "seen": seen},
        )


def room_of(settings: Settings, facts: ModelFacts | None) -> Room:
    """Return the room that a model's requests have; `facts` is None where its file cannot be read."""
    longest = facts.longest_token if facts is not None else 0
    return Room(settings.slots, usable_context(settings, facts), min(longest or _LONGEST_TOKEN, _LONGEST_TOKEN))


def usable_context(settings: Settings, facts: ModelFacts | None) -> int:
    """Return the tokens one request has: what is set, but no more than the model was trained for."""
    trained = facts.context_length if facts is not None else 0
    return min(settings.context, trained or settings.context)
