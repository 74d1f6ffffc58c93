"""The public `capdag` package's switch with a caller on top: `peer_switch.py FOLDER`.

Runs in that package's own environment, on its public API alone. Commands come as JSON lines on stdin, their answers
go out on stdout in any order, with the command's `id`. Ends with stdin.

    {"do": "accept", "name": N}     take the host that connects to FOLDER/N.sock
    {"do": "serves", "cap": C}      whether C is routable
    {"do": "live"}                  the requests in the switch's table
    {"do": "set_policy", "policy": P}   put a network policy in force
    {"do": "held"}                  how many requests and calls the hosts say they hold
    {"do": "call", "cap": C, "argument": base64 | "items": [...], "whole": B, "cancel": B, "patience": S}
        Call C. An argument that is not whole is not ended; with `cancel` the request is cancelled once it has logged
        or answered. After S seconds without a word it is cancelled, too, and `ended` is "untold".
"""

from __future__ import annotations

import base64
import io
import json
import queue
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import Any

import cbor2
import vocabulary  # type: ignore[import-not-found]
from capdag.bifaci.frame import (  # type: ignore[import-not-found]
    CancelReason,
    CreditDirection,
    Frame,
    FrameType,
    MessageId,
    compute_checksum,
)
from capdag.bifaci.policy import HostPolicy, NetworkPolicy  # type: ignore[import-not-found]
from capdag.bifaci.relay_switch import (  # type: ignore[import-not-found]
    RelaySwitch,
    RelaySwitchError,
    SocketPair,
    UnknownRequestError,
)

STREAM = "arg-0"
POLL = 0.05
"""Seconds between two looks at what the switch tells nobody: that a request is no longer in its table."""


class Call:
    """One request: a thread sends its argument under credit while `run` takes what comes."""

    def __init__(self, switch: RelaySwitch, command: dict[str, Any]) -> None:
        self.rid = MessageId.new_uuid()
        self.inbox: queue.Queue[Any] = queue.Queue()
        self._switch = switch
        self._command = command
        self._credit = threading.Semaphore(switch.limits().initial_credit)
        self._over = threading.Event()
        self._parts: dict[str, list[bytes]] = {}
        self._is_sequence = False
        self._logs: list[list[Any]] = []

    def run(self) -> dict[str, Any]:
        """Return what came of it."""
        request = Frame.req(self.rid, self._command["cap"], b"", "application/cbor")
        self._switch.send_to_master(request)
        sender = threading.Thread(target=self._send, daemon=True)
        sender.start()
        try:
            ended, failure = self._take_all()
        finally:
            self._over.set()
        parts = b"".join(part for parts in self._parts.values() for part in parts)
        answer = {"ended": ended, "failure": failure, "logs": self._logs, "value": None, "items": None}
        if self._is_sequence:
            answer["items"] = decode_all(parts)
        else:
            answer["value"] = base64.b64encode(b"".join(decode_all(parts))).decode()
        return answer

    # The argument

    def _send(self) -> None:
        try:
            self._send_argument()
        except RelaySwitchError:
            if not self._over.is_set() and self._switch.is_request_live(self.rid):
                traceback.print_exc()

    def _send_argument(self) -> None:
        items = self._command["items"]
        size = self._switch.limits().max_chunk
        if items is None:
            data = base64.b64decode(self._command["argument"])
            payloads = [cbor2.dumps(data[at : at + size]) for at in range(0, len(data), size)]
        else:
            encoded = [cbor2.dumps(item) for item in items]
            payloads = [item[at : at + size] for item in encoded for at in range(0, len(item), size)]
        self._number = 1
        self._put(Frame.stream_start(self.rid, STREAM, vocabulary.OCTETS, items is not None))
        for index, payload in enumerate(payloads):
            while not self._credit.acquire(timeout=POLL):
                if self._over.is_set():
                    return
            self._put(Frame.chunk(self.rid, STREAM, 0, payload, index, compute_checksum(payload)))
        if self._command["whole"]:
            self._put(Frame.stream_end(self.rid, STREAM, len(payloads)))
            self._put(Frame.end(self.rid))

    def _put(self, frame: Any) -> None:
        frame.seq = self._number
        self._number += 1
        self._switch.send_to_master(frame)

    # What comes

    def _take_all(self) -> tuple[str, list[str] | None]:
        heard_at = time.monotonic()
        while True:
            try:
                frame = self.inbox.get(timeout=POLL)
            except queue.Empty:
                summary = self._switch.recent_terminal_of_rid(self.rid)
                if summary is not None and self.inbox.empty():
                    return str(summary.kind.value), None
                if time.monotonic() - heard_at > self._command["patience"]:
                    self._switch.cancel_request(self.rid, CancelReason.unattributed())
                    return "untold", None
                continue
            heard_at = time.monotonic()
            if frame.frame_type == FrameType.END:
                return "end", None
            if frame.frame_type == FrameType.ERR:
                return "err", [frame.error_code(), frame.attribution_class().value, frame.error_message()]
            self._take(frame)
            if self._command["cancel"] and (self._logs or self._parts):
                self._command["cancel"] = False
                self._switch.cancel_request(self.rid, CancelReason.user())

    def _take(self, frame: Any) -> None:
        if frame.frame_type == FrameType.STREAM_START:
            self._is_sequence = bool(frame.is_sequence)
        elif frame.frame_type == FrameType.CHUNK:
            if compute_checksum(frame.payload) != frame.checksum:
                raise ValueError("a CHUNK has a wrong checksum")
            self._parts.setdefault(frame.stream_id, []).append(frame.payload)
            with suppress(UnknownRequestError):  # the END has passed the switch already
                self._switch.send_to_master(Frame.credit(self.rid, frame.stream_id, 1, CreditDirection.RESPONSE))
        elif frame.frame_type == FrameType.CREDIT:
            self._credit.release(frame.credit_count())
        elif frame.frame_type == FrameType.LOG:
            self._logs.append([frame.log_level(), frame.log_message(), frame.log_progress()])


def decode_all(data: bytes) -> list[Any]:
    """Decode one CBOR value after the other."""
    if not data:
        return []
    stream = io.BytesIO(data)
    decoder = cbor2.CBORDecoder(stream)
    found = []
    while stream.tell() < len(data):
        found.append(decoder.decode())
    return found


class Engine:
    """The commands."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._switch: Any = None
        self._attaching = threading.Lock()
        self._calls: dict[str, Call] = {}
        self._output = threading.Lock()

    def _pump(self) -> None:
        while True:
            try:
                frame = self._switch.read_from_masters()
            except RelaySwitchError as error:
                print(f"the public switch: {error!r}", file=sys.stderr)
                continue
            if frame is None:
                time.sleep(POLL)
            elif (call := self._calls.get(frame.id.to_string())) is not None:
                call.inbox.put(frame)

    def obey(self, command: dict[str, Any]) -> None:
        """Do what a command says and answer it."""
        try:
            answer = json.dumps({**getattr(self, command["do"])(command), "id": command["id"]})
        except Exception as error:  # noqa: BLE001 - told to whoever gave the command
            traceback.print_exc()
            answer = json.dumps({"error": repr(error), "id": command["id"]})
        with self._output:
            print(answer, flush=True)

    def accept(self, command: dict[str, Any]) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{self._folder}/{command['name']}.sock")
            listener.listen()
            connection, _ = listener.accept()
        pair = SocketPair(command["name"], connection.makefile("rb"), connection.makefile("wb"))
        with self._attaching:
            if self._switch is None:  # it cannot be without a host
                self._switch = RelaySwitch([pair], HostPolicy(NetworkPolicy.NO_TELEMETRY))
                threading.Thread(target=self._pump, daemon=True).start()
            else:
                self._switch.add_master(pair)
        return {}

    def serves(self, command: dict[str, Any]) -> dict[str, Any]:
        return {"serves": command["cap"] in json.loads(self._switch.routable_capabilities())}

    def live(self, _command: dict[str, Any]) -> dict[str, Any]:
        return {"live": [snapshot.cap_urn for snapshot in self._switch.protocol_stats().requests.active]}

    def set_policy(self, command: dict[str, Any]) -> dict[str, Any]:
        self._switch.set_policy(HostPolicy(NetworkPolicy[command["policy"].upper()]))
        return {}

    def held(self, _command: dict[str, Any]) -> dict[str, Any]:
        hosts = self._switch.protocol_stats().hosts.values()
        return {"held": sum(stats.incoming_rxids + stats.outgoing_rids for stats in hosts)}

    def call(self, command: dict[str, Any]) -> dict[str, Any]:
        call = Call(self._switch, command)
        self._calls[call.rid.to_string()] = call
        try:
            return call.run()
        finally:
            del self._calls[call.rid.to_string()]


def main() -> None:
    """Obey until stdin ends."""
    engine = Engine(sys.argv[1])
    for line in sys.stdin:
        threading.Thread(target=engine.obey, args=(json.loads(line),), daemon=True).start()


if __name__ == "__main__":
    main()
