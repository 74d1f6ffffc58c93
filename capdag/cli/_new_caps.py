"""The code that a new project gets for a cap: its name, a handler that already answers, a line of its test."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from typing import NamedTuple

from capdag.errors import ConfigError
from capdag.urn import CapUrn, UrnError
from capdag.wire import IDENTITY_CAP

_TAKEN = ("cartridge", "caps", "main", "module", "name", "request", "spec")
"""Names that the project's modules have already."""

_COMMANDS = ("manifest",)
"""Names that command mode has for itself."""


class NewCap(NamedTuple):
    """A cap of a project to be. `alias` is what a person calls it, `function` the name of its handler."""

    urn: CapUrn
    alias: str
    function: str

    @property
    def constant(self) -> str:
        """The name of the constant that holds the URN."""
        return self.function.upper()

    @property
    def gives_items(self) -> bool:
        """True if the answer is a sequence: media of lists are given item by item."""
        return "list" in self.urn.out_media.tags

    def handler(self, *, is_async: bool) -> str:
        """Return the handler with its decorator."""
        before, kind = ("async ", "AsyncRequest") if is_async else ("", "Request")
        lines = [
            "@cartridge.cap(",
            f"    {self.constant},",
            f"    title={quote(self.alias.replace('-', ' ').capitalize())},",
            f"    aliases=[{quote(self.alias)}],",
            *(self._output() if self.gives_items else ()),
            ")",
            f"{before}def {self.function}(request: {kind}) -> None:",
            f'    """Say here what {self.alias} does: its --help shows this."""',
            *(f"    {line}" for line in self._body("await " if is_async else "")),
        ]
        return "\n".join(lines)

    def _output(self) -> list[str]:
        return [
            "    outputs=[",
            "        {",
            f'            "media_urn": {quote(str(self.urn.out_media))},',
            '            "name": "items",',
            '            "output_description": "one item after the other",',
            '            "is_sequence": True,',
            "        },",
            "    ],",
        ]

    def _body(self, wait: str) -> list[str]:
        takes, gives = not self.urn.in_media.is_void, not self.urn.out_media.is_void
        if takes and gives and not self.gives_items:
            loop = "async for" if wait else "for"
            return [f"{loop} piece in request.main_input():", f"    {wait}request.output.write(piece)"]
        read = [f"text = {wait}request.main_input().text()"] if takes else []
        if not gives:
            said = 'f"{len(text)} characters have come"' if takes else '"done"'
            return [*read, f'request.log("info", {said})']
        value = "text" if takes else '"nothing yet"'
        return [*read, f"{wait}request.output.{'item' if self.gives_items else 'write'}({value})"]

    def row(self) -> str:
        """Return a row of the test: the alias, what goes in and what comes out of the handler as it is."""
        takes, gives = not self.urn.in_media.is_void, not self.urn.out_media.is_void
        answer = ("hello" if takes else "nothing yet") if gives else ""
        if gives and self.gives_items:
            answer = f'"{answer}"\n'
        given = "hello" if takes else ""
        return f"        ({quote(self.alias)}, b{quote(given)}, b{quote(answer)}),"


def read_caps(texts: Iterable[str]) -> list[NewCap]:
    """Read the caps of a project to be. Raises ConfigError for what is no cap URN, and for two of one name."""
    caps: dict[str, NewCap] = {}
    for text in texts:
        cap = _read_cap(text)
        if cap.function in caps:
            raise ConfigError(
                f"--cap {text!r} would be {cap.function!r}, and so would {str(caps[cap.function].urn)!r}: give each a"
                " tag of its own"
            )
        caps[cap.function] = cap
    return list(caps.values())


def _read_cap(text: str) -> NewCap:
    try:
        urn = CapUrn.parse(text)
    except UrnError as error:
        raise ConfigError(f"--cap {text!r} is no cap URN: {error}") from None
    if str(urn) == IDENTITY_CAP:
        raise ConfigError(f"--cap {text!r} is the identity cap, which every cartridge has anyway")
    if any("live" in media.tags for media in (urn.in_media, urn.out_media)):
        raise ConfigError(
            f"--cap {text!r} is about a live feed, and needs a device: make the project without it, and add the cap and"
            " its @cartridge.feed by hand"
        )
    alias = next((tag for tag, value in urn.tags.items() if value == "*"), None) or next(iter(urn.tags), "run")
    if alias in _COMMANDS or alias.startswith("-"):
        meant = "a command of every cartridge" if alias in _COMMANDS else "an option to a command line"
        raise ConfigError(f"--cap {text!r} would be called {alias!r}, which is {meant}: give it another tag")
    function = re.sub(r"\W", "_", alias, flags=re.ASCII)
    if not function.isidentifier() or keyword.iskeyword(function) or function in _TAKEN:
        function = f"do_{function}"
    return NewCap(urn, alias, function)


def quote(text: str) -> str:
    """Return a Python text literal as formatters write it: in double quotes, unless it holds some."""
    shown = repr(text)
    return shown if '"' in text or shown.startswith('"') else f'"{shown[1:-1]}"'
