"""The language of capabilities: tagged, media and cap URNs, dispatch, ranking and the cap table.

Values without I/O. Rules: protocol-spec/urn.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._cap import CapKind, CapUrn, Effect, Grade
    from ._error import UrnError
    from ._explain import Axis, Verdict, explain_dispatch
    from ._response import admits_response, response_media
    from ._table import CapTable, Registration, best_match
    from ._tagged import MediaUrn, TaggedUrn
    from ._text import MAX_TAGS, MAX_TEXT
else:
    from capdag.lazy import exports

    __getattr__ = exports(
        __name__,
        {
            "._cap": "CapKind CapUrn Effect Grade",
            "._error": "UrnError",
            "._explain": "Axis Verdict explain_dispatch",
            "._response": "admits_response response_media",
            "._table": "CapTable Registration best_match",
            "._tagged": "MediaUrn TaggedUrn",
            "._text": "MAX_TAGS MAX_TEXT",
        },
    )

__all__ = [
    "MAX_TAGS",
    "MAX_TEXT",
    "Axis",
    "CapKind",
    "CapTable",
    "CapUrn",
    "Effect",
    "Grade",
    "MediaUrn",
    "Registration",
    "TaggedUrn",
    "UrnError",
    "Verdict",
    "admits_response",
    "best_match",
    "explain_dispatch",
    "response_media",
]
