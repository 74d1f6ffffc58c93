"""A host's way onto the switch: POLICY to it, RELAY_NOTIFY from it, the identity check, and its end."""

from __future__ import annotations

import logging
import os
from functools import partial
from uuid import uuid4

from capdag.errors import ConfigError
from capdag.transport import Link
from capdag.wire import (
    FrameView,
    IdentityCheck,
    NetworkPolicy,
    deferred_identity_request,
    identity_request,
    policy_frame,
    view_of,
)
from capdag.wire.notify import read_notify

from ._alarms import Alarms
from ._endings import Endings
from ._masters import Master, Masters, MasterState
from ._outgoing import Outgoing
from ._queue import Queue
from ._rows import Rows
from ._settings import SwitchSettings

log = logging.getLogger(__name__)

_NONCE_SIZE = 32


class Attaching:
    """Takes masters through their states. What a host does wrong costs that host its link, and nothing else."""

    def __init__(
        self, settings: SwitchSettings, masters: Masters, rows: Rows, endings: Endings, queue: Queue, out: Outgoing,
        alarms: Alarms,
    ) -> None:  # fmt: skip
        self.policy = settings.policy
        self._settings = settings
        self._masters = masters
        self._rows = rows
        self._endings = endings
        self._queue = queue
        self._out = out
        self._alarms = alarms

    def attach(self, link: Link, name: str) -> Master:
        """Take a host in and send it POLICY. One link too many that has proved nothing is closed."""
        unproved = sum(master.state is not MasterState.READY for master in self._masters.living())
        if unproved >= self._settings.max_unproved:
            master = Master(link, name)
            self.end(master, f"{unproved} links have not proved an identity yet, the most that may (max_unproved)")
            return master
        master = self._masters.attach(link, name)
        self._out.put(master, view_of(policy_frame(self.policy)))
        self._expect(master, self._settings.notify_timeout, "no RELAY_NOTIFY")
        return master

    def _expect(self, master: Master, timeout: float, lack: str) -> None:
        """End the link if the alarm is not dropped in time."""
        too_late = partial(self.end, master, f"{lack} in {timeout:g} s")
        master.alarm = self._alarms.after(timeout, partial(self._out.turn, too_late))

    def set_policy(self, policy: NetworkPolicy) -> None:
        """Tell a new network policy to all hosts, those that come later too."""
        self.policy = policy
        for master in self._masters.living():
            self._out.put(master, view_of(policy_frame(policy)))

    def notify(self, master: Master, view: FrameView) -> None:
        """Take a RELAY_NOTIFY. Raises RemoteProtocolError."""
        notice, is_first = read_notify(view), master.notice is None
        master.notice = notice
        master.limits = self._settings.limits.negotiate(notice.limits)
        master.max_frame = master.limits.max_frame
        if is_first:
            self._alarms.drop(master.alarm)
            master.alarm = None
        if master.state is MasterState.READY:
            self._offer(master)
        elif notice.caps and master.check is None:
            self._start_check(master, deferred=not is_first)

    def _offer(self, master: Master) -> None:
        self._queue.hosts_changed(self._masters.offer(master))

    def _start_check(self, master: Master, *, deferred: bool) -> None:
        rid, nonce = uuid4().bytes, os.urandom(_NONCE_SIZE)
        if deferred:
            master.check = IdentityCheck(deferred=True)
            frames = deferred_identity_request(rid, self._rows.next_xid())
        else:
            master.check = IdentityCheck(nonce)
            frames = identity_request(rid, nonce)
        master.check_rid = rid
        self._expect(master, self._settings.identity_timeout, "no answer to the identity check")
        for frame in frames:
            self._out.put(master, view_of(frame))

    def check(self, master: Master, view: FrameView) -> None:
        """Take a frame of the identity answer. Raises RemoteProtocolError if it proves nothing."""
        if master.check is None or not master.check.feed(view):
            return
        self._forget_check(master)
        master.side.prove()
        master.proved = True
        log.info("host %s is ready", master.name)
        superseded = self._masters.take_slot(master)
        if superseded is not None:
            self.end(superseded, "another link has proved to be this host: if two have its name, give each its own")
        self._offer(master)

    def _forget_check(self, master: Master) -> None:
        self._alarms.drop(master.alarm)
        if master.check_rid is not None:
            self._rows.released.add(master.check_rid)
        master.check = master.check_rid = master.alarm = None

    def end(self, master: Master, reason: str) -> None:
        """A host's link has ended, or is ended for `reason`: settle everything it held. Its slot is free again."""
        if master.ended:
            return
        log.warning("host %s is detached: %s", master.name, reason)
        self._forget_check(master)
        master.ended, master.reason = True, reason
        self._masters.leave(master)
        if master.proved:  # no other holds anything
            self._masters.withdraw(master)
            self._queue.hosts_changed()
            self._endings.master_died(master, reason)
        self._out.later(master.link.close)

    def detach(self, name: str) -> None:
        """Let a host go for good. Raises ConfigError for a name that nobody has."""
        master = self._masters.find(name)
        if master is None:
            known = ", ".join(one.name for one in self._masters.all()) or "none"
            raise ConfigError(f"no host is named {name!r}; the hosts are: {known}")
        self.end(master, "it was detached")
        self._masters.forget(master)

    def close(self) -> None:
        """Close every link: the switch is going down, and what they held is settled."""
        for master in self._masters.living():
            self._forget_check(master)
            master.ended, master.reason = True, "the switch is shutting down"
            self._masters.withdraw(master)
            self._masters.forget(master)
            master.link.close()
