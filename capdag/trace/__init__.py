"""Traces: the frames of one cartridge's link, recorded, shown and replayed (protocol-spec/traces.md).

A recorder stands between a host and a cartridge as a process of its own (`python -m capdag.trace`, `capdag trace
record`), so it works with any host and any language and costs nothing where it is not used.
"""

from .file import Closed, Exited, FrameSeen, Head, Record, Trace, TraceError, TraceWriter, Unreadable, read_trace
from .listing import list_records, list_requests
from .masking import mask
from .replay import Outcome, Replay, replay
from .story import RequestStory, match_request, requests_of, select

__all__ = [
    "Closed", "Exited", "FrameSeen", "Head", "Outcome", "Record", "Replay", "RequestStory", "Trace", "TraceError",
    "TraceWriter", "Unreadable", "list_records", "list_requests", "mask", "match_request", "read_trace", "replay",
    "requests_of", "select",
]  # fmt: skip
