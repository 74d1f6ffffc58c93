"""The JSON that some frames carry as bytes (protocol-spec/wire.md, Handshake)."""

from __future__ import annotations

import json
from typing import Any

from capdag.errors import RemoteProtocolError


def read_json(data: object, what: str) -> Any:
    """Read UTF-8 JSON, none of whose texts holds half a character: what is read can be written again, anywhere.

    Raises RemoteProtocolError, which calls it `what`.
    """
    if not isinstance(data, bytes):
        raise RemoteProtocolError(f"{what} must be bytes holding JSON, not {type(data).__name__}")
    try:
        text = data.decode()
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"{what} must be JSON in UTF-8: {error}") from None
    return value
