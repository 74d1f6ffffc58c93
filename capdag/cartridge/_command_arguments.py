"""A cap's arguments as words of a command line, by the sources of its manifest (protocol-spec/wire.md, Manifest).

`{"position": n}` is the n-th word, `{"cli_flag": s}` the option s, `{"stdin": …}` of the main argument stdin. What has
neither position nor flag may also come from a file, by an option of its name.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

from ._served import ArgFacts, ServedCap
from .words import path_in, text_of

Facts = Mapping[str, Any]

STDIN = 0

_OURS = ("--help", "--raw", "--save")
_VALUE_HELP = "@FILE reads a file, - stdin, @@ stands for @"


class GivenArgument(NamedTuple):
    """One argument of a call. Its values are `values` or, if `fd` is not None, what is read there: bytes as they come
    or, for a sequence, a line of JSON an item."""

    media_urn: str
    is_sequence: bool
    values: Sequence[Any] = ()
    fd: int | None = None


class CommandArguments:
    """The arguments of one cap: `params` is what click reads them by, `given` what its values mean.

    `flags` are those that the manifest declares, `words` what is to be said of those that are words.
    """

    def __init__(self, cap: ServedCap) -> None:
        facts: Sequence[Facts] = cap.facts["args"]
        self._args = [_Arg(number, arg, each) for number, (arg, each) in enumerate(zip(cap.args, facts, strict=True))]
        self.flags = {arg.flag for arg in self._args if arg.flag is not None}
        for arg in self._args:
            if arg.flag is None and arg.position is None:
                arg.file_flag = f"--{arg.facts['name']}"
                while arg.file_flag in self.flags or arg.file_flag in _OURS:
                    arg.file_flag += "-file"
        last = max((arg.position for arg in self._args if arg.position is not None), default=None)
        in_order = sorted(self._args, key=lambda arg: -1 if arg.position is None else arg.position)
        self.params = [arg.param(is_last=arg.position == last) for arg in in_order]
        self.words = {arg.facts["name"].upper(): arg.description() for arg in in_order if arg.position is not None}

    def given(self, values: Mapping[str, Any]) -> list[GivenArgument]:
        """Return the arguments of a command line. Raises click.UsageError for what cannot be read."""
        found = [given for arg in self._args for given in arg.given(values[arg.key])]
        if sum(given.fd == STDIN for given in found) > 1:
            raise click.UsageError("stdin can be the value of one argument only; give the others as @FILE")
        if any(given.fd == STDIN for given in found):
            _check_stdin()
        return found


class _Arg:
    """One argument: what the manifest says, and where a command line has it."""

    def __init__(self, number: int, arg: ArgFacts, facts: Facts) -> None:
        sources = {kind: value for source in facts["sources"] for kind, value in source.items()}
        self.key = f"arg_{number}"
        self.facts = facts
        self.flag = _flag(sources["cli_flag"]) if "cli_flag" in sources else None
        self.position: int | None = sources.get("position")
        self.file_flag: str | None = None
        self._is_main = arg.is_main
        self._is_live = arg.is_main and "live" in arg.media.tags
        self._media_urn = sources.get("stdin", arg.media_urn)
        self._is_sequence = facts.get("is_sequence", False)
        self._default = facts.get("default_value")

    def param(self, *, is_last: bool) -> click.Parameter:
        """Return the word or option that click is to read."""
        required = self.facts["required"] and not self._is_main and self._default is None
        if self.position is not None:
            count = -1 if self._is_sequence and is_last else 1
            metavar = self.facts["name"].upper() + ("..." if count == -1 else "")
            return click.Argument([self.key], required=required, nargs=count, metavar=metavar)
        if self.flag is not None:
            text = f"{self.description()} ({_VALUE_HELP})"
            return click.Option(
                [self.flag, self.key], required=required, multiple=self._is_sequence, metavar="VALUE", help=text
            )
        assert self.file_flag is not None
        return click.Option([self.file_flag, self.key], required=required, metavar="FILE", help=self.description())

    def description(self) -> str:
        """Return what a person is told of the argument."""
        said = self.facts.get("arg_description", self.facts["name"])
        from_stdin = "; stdin without it" if self._is_main else ""
        default = "" if self._default is None else f" [default: {self._default}]"
        return f"{said}{from_stdin}{default}"

    def given(self, value: Any) -> Iterator[GivenArgument]:
        """Yield this argument if the command line gives it, or stdin or a default does."""
        if value is None or value == ():
            yield from self._left_out()
        elif self.file_flag is not None:
            yield self._argument(fd=STDIN if value == "-" else _open(value))
        elif isinstance(value, tuple):
            yield self._argument(values=[_item(word) for word in value])
        elif value == "-":
            yield self._argument(fd=STDIN)
        elif (path := path_in(value)) is not None:
            yield self._argument(fd=_open(path))
        else:
            yield self._argument(values=[_item(value) if self._is_sequence else text_of(value).encode()])

    def _left_out(self) -> Iterator[GivenArgument]:
        if self._is_main and self._takes_stdin():
            yield self._argument(fd=STDIN)
        elif self._is_live:
            yield self._argument()  # an empty selector: a feed as it is by default
        elif self._default is not None and self._is_sequence:
            yield self._argument(values=self._default if isinstance(self._default, list) else [self._default])
        elif self._default is not None:
            default = self._default if isinstance(self._default, str) else json.dumps(self._default)
            yield self._argument(values=[default.encode()])

    def _takes_stdin(self) -> bool:
        """True if stdin is to be read: it was redirected, or there is nothing else that the argument could be."""
        optional = not self.facts["required"] or self._default is not None or self._is_live
        return not optional or (bool(sys.stdin) and not os.isatty(STDIN))

    def _argument(self, values: Sequence[Any] = (), fd: int | None = None) -> GivenArgument:
        return GivenArgument(self._media_urn, self._is_sequence, values, fd)


def _flag(text: str) -> str:
    """Return a flag as it is typed: one that is declared without dashes gets two."""
    return text if text.startswith("-") else f"--{text}"


def _item(word: str) -> str | bytes:
    """Return one item of a sequence: a text, or a whole file."""
    path = path_in(word)
    if path is None:
        return text_of(word)
    with open(_open(path), "rb") as file:
        return file.read()


if sys.platform == "win32":
    _READ_BYTES = os.O_RDONLY | os.O_BINARY | os.O_NOINHERIT
else:
    _READ_BYTES = os.O_RDONLY | os.O_CLOEXEC


def _open(path: str) -> int:
    try:
        return os.open(path, _READ_BYTES)
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from None


def _check_stdin() -> None:
    if not sys.stdin:  # None in a process that was started without
        raise click.UsageError("stdin is closed: redirect it, or give the input as an option (see --help)")
    if os.isatty(STDIN):
        click.echo("(reading from the terminal; Ctrl-D on a line of its own ends the input)", err=True)
