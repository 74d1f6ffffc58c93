"""What is said of a process that ended: the code, class and words of its ERRs (protocol-spec/host.md, Death)."""

from __future__ import annotations

from typing import NamedTuple

from capdag.errors import AttributionClass
from capdag.wire import Failure


class ProcessEnd(NamedTuple):
    """How a process ended. `status`: words such as "exited with status 1".

    `killed_for`: why the host killed it, if it did. `violation`: the rule that its bytes broke. `link`: how its stdout
    broke off. `stderr`: its last lines. `may_be_ours`: it ended in a way in which the host ends a process too.
    """

    cartridge_id: str
    status: str
    oom_killed: bool = False
    killed_for: Failure | None = None
    violation: str | None = None
    link: str | None = None
    stderr: str = ""
    may_be_ours: bool = False

    @property
    def is_crash(self) -> bool:
        """True if the process ended by what it did itself, not because of a request or an order to leave."""
        return self.killed_for is None or self.killed_for.code in ("CARTRIDGE_UNHEALTHY", "PROTOCOL_VIOLATION")

    def _failure(self, code: str, attribution: AttributionClass, what: str) -> Failure:
        return self._quoting(Failure(code, attribution, f"cartridge {self.cartridge_id!r} {what}"))

    def _quoting(self, failure: Failure) -> Failure:
        """Add stderr as a detail: what an engine prints is for whoever runs it, not for every client of a gateway."""
        return failure._replace(detail={"stderr": self.stderr}) if self.stderr else failure

    def _story(self) -> str:
        """Return what happened, in words that follow the cartridge's name."""
        if self.violation is not None:
            return f"broke the protocol: {self.violation}; {self._aftermath()}"
        return f"{self.status} ({self.link})" if self.link is not None else self.status

    def _aftermath(self) -> str:
        """Return how a process ended that had to. Which of the two was first says nothing; a status of its own does."""
        return "the host ended it" if self.may_be_ours else f"it {self.status}"

    def death(self) -> Failure:
        """Return what the requests end with that the process was serving."""
        if self.violation is not None:
            return self._failure("PROTOCOL_VIOLATION", AttributionClass.INTERNAL, self._story())
        if self.killed_for is not None:
            message = f"{self.killed_for.message}; it {self.status}"
            return self._quoting(self.killed_for._replace(message=message))
        if self.oom_killed:
            text = f"{self.status}: give it more memory, or run less beside it"
            return self._failure("OOM_KILLED", AttributionClass.RESOURCE, text)
        return self._failure("CARTRIDGE_DIED", AttributionClass.ENVIRONMENT, self._story())

    def failed_start(self, refusal: str | None, waited: str | None) -> Failure:
        """Return what the requests end with that waited for the start.

        `refusal` says what was wrong with its answer, `waited` what did not come, or not in time.
        """
        if refusal is not None:
            what = f"gave a wrong answer at its start: {refusal}; {self._aftermath()}"
        elif waited is not None:
            what = f"did not start: {waited}"
        else:
            what = f"{self._story()} before it was ready"
        return self._failure("SPAWN_FAILED", AttributionClass.ENVIRONMENT, what)
