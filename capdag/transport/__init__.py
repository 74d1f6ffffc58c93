"""Frames over descriptors in trio: links, outboxes, sockets, processes, the guardian (contracts: Links, Processes).

Links to other machines are in `dialling`, `listening` and `redialling`: what they stand on is 3 MB and 30 ms of every
start.
"""

from ._exits import ExitStatus
from ._guardian_main import carriers, kill_carriers
from .addresses import Address, AddressError, Scheme, parse_address
from .bytelink import ByteLink, LinkEnd
from .childlink import ChildLink, child_link
from .credentials import Credentials
from .fdlink import FdLink
from .guardian import Guardian, new_run_id, open_guardian
from .links import Dispatcher, Link, LocalLink, Receiver, local_link_pair
from .process import ENGINE_ENVIRONMENT, ChildProcess, SpawnError, child_environment, spawn
from .runs import SweptRun, sweep_stale_runs, write_run_file
from .sockets import SocketError, UnixListener, connect_unix, socket_link
from .stderr import StderrTail, drain_stderr
from .streamlink import StreamLink
from .tokens import Token, read_token

__all__ = [
    "ENGINE_ENVIRONMENT", "Address", "AddressError", "ByteLink", "ChildLink", "ChildProcess", "Credentials",
    "Dispatcher", "ExitStatus", "FdLink", "Guardian", "Link", "LinkEnd", "LocalLink", "Receiver", "Scheme",
    "SocketError", "SpawnError", "StderrTail", "StreamLink", "SweptRun", "Token", "UnixListener", "carriers",
    "child_environment", "child_link", "connect_unix", "drain_stderr", "kill_carriers", "local_link_pair", "new_run_id",
    "open_guardian", "parse_address", "read_token", "socket_link", "spawn", "sweep_stale_runs", "write_run_file",
]  # fmt: skip
