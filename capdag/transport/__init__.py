"""Frames over descriptors in trio: links, outboxes, sockets, processes, the guardian (contracts: Links, Processes)."""

from .fdlink import FdLink, LinkEnd
from .links import Dispatcher, Link, LocalLink, Receiver, local_link_pair
from .sockets import SocketError, UnixListener, connect_unix, socket_link

__all__ = [
    "Dispatcher", "FdLink", "Link", "LinkEnd", "LocalLink", "Receiver", "SocketError", "UnixListener", "connect_unix",
    "local_link_pair", "socket_link",
]  # fmt: skip
