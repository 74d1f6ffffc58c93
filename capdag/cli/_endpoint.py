"""Where the two halves of a split server meet: `unix:PATH`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class Endpoint(click.ParamType[Path]):
    """A unix socket, written `unix:PATH`; converted to its path."""

    name = "unix:PATH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if isinstance(value, Path):
            return value
        scheme, _, path = str(value).partition(":")
        if scheme != "unix" or not path:
            self.fail(
                f"{value!r} is no endpoint: write unix: and the path of a socket, as unix:/run/capdag/a.sock",
                param,
                ctx,
            )
        return Path(path)
