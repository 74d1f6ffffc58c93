"""The language of capabilities: tagged, media and cap URNs, dispatch, ranking and the cap table.

Values without I/O. Rules: protocol-spec/urn.md.
"""

from __future__ import annotations

from capdag.urn._cap import CapKind, CapUrn, Effect, Grade
from capdag.urn._error import UrnError
from capdag.urn._explain import Axis, Verdict, explain_dispatch
from capdag.urn._response import admits_response, response_media
from capdag.urn._table import CapTable, Registration, best_match
from capdag.urn._tagged import MediaUrn, TaggedUrn
from capdag.urn._text import MAX_TAGS, MAX_TEXT

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
