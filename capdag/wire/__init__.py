"""The wire room: protocol 6 as data and small machines, without I/O (protocol-spec/wire.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capdag.errors import LocalProtocolError, ProtocolError, RemoteProtocolError

    from .answers import AnswerRules
    from .cbor import decode_value, encode_value
    from .checksum import fnv1a_64
    from .codec import decode_frame, encode_frame, inspect, view_of, with_routing_id
    from .credit import REQUEST, RESPONSE, ReceiveWindow, SendWindow, credit_frame
    from .frame import (
        FLOW_TYPES,
        PROTOCOL_VERSION,
        TERMINAL_TYPES,
        Frame,
        FrameType,
        MessageId,
        show_id,
        show_value,
    )
    from .framing import FrameSplitter, pack
    from .handshake import (
        CartridgeHello,
        IdentityCheck,
        deferred_identity_request,
        hello_frame,
        identity_request,
        read_cartridge_hello,
        read_hello,
    )
    from .limits import DEFAULT_LIMITS, PAYLOAD_HEADROOM, XID_HEADROOM, Limits
    from .link_life import IDENTITY_CAP
    from .meta import (
        HOST_ABORT,
        USER_CANCEL,
        CancelReason,
        Failure,
        LogRecord,
        body_end_frame,
        cancel_frame,
        end_frame,
        err_frame,
        failure_of,
        failure_of_end,
        is_success,
        log_frame,
        read_cancel,
        read_failure,
        read_log,
    )
    from .policy import NetworkPolicy, policy_frame, read_policy
    from .pools import ALL_POOL, Pools, PoolState, read_pools, write_pools
    from .requests import DropReason, FrameCounts, ReleasedRing, RequestTable, TableFullError
    from .sequence import ReorderBuffer, SeqAssigner, flow_of
    from .streams import CreditViolationError, InStream, InStreams, Received, StreamHead
    from .values import ItemReader, item_payloads, scalar_payloads
    from .view import FrameView
else:
    from capdag.lazy import exports

    __getattr__ = exports(
        __name__,
        {
            "capdag.errors": "LocalProtocolError ProtocolError RemoteProtocolError",
            ".answers": "AnswerRules",
            ".cbor": "decode_value encode_value",
            ".checksum": "fnv1a_64",
            ".codec": "decode_frame encode_frame inspect view_of with_routing_id",
            ".credit": "REQUEST RESPONSE ReceiveWindow SendWindow credit_frame",
            ".frame": "FLOW_TYPES PROTOCOL_VERSION TERMINAL_TYPES Frame FrameType MessageId show_id show_value",
            ".framing": "FrameSplitter pack",
            ".handshake": "CartridgeHello IdentityCheck deferred_identity_request hello_frame identity_request "
            "read_cartridge_hello read_hello",
            ".limits": "DEFAULT_LIMITS PAYLOAD_HEADROOM XID_HEADROOM Limits",
            ".link_life": "IDENTITY_CAP",
            ".meta": "HOST_ABORT USER_CANCEL CancelReason Failure LogRecord body_end_frame cancel_frame end_frame "
            "err_frame failure_of failure_of_end is_success log_frame read_cancel read_failure read_log",
            ".policy": "NetworkPolicy policy_frame read_policy",
            ".pools": "ALL_POOL Pools PoolState read_pools write_pools",
            ".requests": "DropReason FrameCounts ReleasedRing RequestTable TableFullError",
            ".sequence": "ReorderBuffer SeqAssigner flow_of",
            ".streams": "CreditViolationError InStream InStreams Received StreamHead",
            ".values": "ItemReader item_payloads scalar_payloads",
            ".view": "FrameView",
        },
    )

__all__ = [
    "ALL_POOL", "DEFAULT_LIMITS", "FLOW_TYPES", "HOST_ABORT", "IDENTITY_CAP", "PAYLOAD_HEADROOM", "PROTOCOL_VERSION",
    "REQUEST", "RESPONSE", "TERMINAL_TYPES", "USER_CANCEL", "XID_HEADROOM", "AnswerRules", "CancelReason",
    "CartridgeHello", "CreditViolationError", "DropReason", "Failure", "Frame", "FrameCounts", "FrameSplitter",
    "FrameType", "FrameView", "IdentityCheck", "InStream", "InStreams", "ItemReader", "Limits", "LocalProtocolError",
    "LogRecord", "MessageId", "NetworkPolicy", "PoolState", "Pools", "ProtocolError", "ReceiveWindow", "Received",
    "ReleasedRing", "RemoteProtocolError", "ReorderBuffer", "RequestTable", "SendWindow", "SeqAssigner", "StreamHead",
    "TableFullError", "body_end_frame", "cancel_frame", "credit_frame", "decode_frame", "decode_value",
    "deferred_identity_request", "encode_frame", "encode_value", "end_frame", "err_frame", "failure_of",
    "failure_of_end", "flow_of", "fnv1a_64", "hello_frame", "identity_request", "inspect", "is_success",
    "item_payloads", "log_frame", "pack", "policy_frame", "read_cancel", "read_cartridge_hello", "read_failure",
    "read_hello", "read_log", "read_policy", "read_pools", "scalar_payloads", "show_id", "show_value", "view_of",
    "with_routing_id", "write_pools",
]  # fmt: skip
