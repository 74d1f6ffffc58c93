"""Frames over descriptors in trio: links, outboxes, sockets, processes, the guardian (contracts: Links, Processes)."""

from ._exits import ExitStatus
from .fdlink import FdLink, LinkEnd
from .guardian import Guardian, new_run_id, open_guardian
from .links import Dispatcher, Link, LocalLink, Receiver, local_link_pair
from .process import ENGINE_ENVIRONMENT, ChildProcess, SpawnError, child_environment, spawn
from .runs import SweptRun, sweep_stale_runs, write_run_file
from .sockets import SocketError, UnixListener, connect_unix, socket_link
from .stderr import StderrTail, drain_stderr

__all__ = [
    "ENGINE_ENVIRONMENT", "ChildProcess", "Dispatcher", "ExitStatus", "FdLink", "Guardian", "Link", "LinkEnd",
    "LocalLink", "Receiver", "SocketError", "SpawnError", "StderrTail", "SweptRun", "UnixListener",
    "child_environment", "connect_unix", "drain_stderr", "local_link_pair", "new_run_id", "open_guardian",
    "socket_link", "spawn", "sweep_stale_runs", "write_run_file",
]  # fmt: skip
