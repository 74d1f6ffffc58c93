"""The client room: call a capability and read its streams."""

from capdag.relay import Capability
from capdag.wire import StreamHead

from ._answer import Answer, AnswerStream
from ._call import Call
from ._client import ANSWER_LIMIT, Client
from ._events import Argument, CallEvent, Ended, Logged, StreamEnded, StreamStarted, Value

__all__ = [
    "ANSWER_LIMIT", "Answer", "AnswerStream", "Argument", "Call", "CallEvent", "Capability", "Client", "Ended",
    "Logged", "StreamEnded", "StreamHead", "StreamStarted", "Value",
]  # fmt: skip
