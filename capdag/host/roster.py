"""Which cartridges a host has: the wanted, and those that finish what they hold (protocol-spec/host.md, Roster)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from capdag.errors import ConfigError

from .cartridge import Cartridge
from .exchange import Exchange, log
from .settings import CartridgeRecord


class Roster:
    """The cartridges by id, in order; iterating gives the retired ones too, which are last.

    Raises ConfigError if two records have one id.
    """

    def __init__(self, exchange: Exchange, records: Sequence[CartridgeRecord]) -> None:
        self._x = exchange
        self.current: dict[str, Cartridge] = {}
        self._retired: list[Cartridge] = []
        self.sync(records)

    def __iter__(self) -> Iterator[Cartridge]:
        yield from self.current.values()
        yield from self._retired

    def find(self, record_id: str) -> Cartridge:
        """Return a cartridge that is wanted. Raises ConfigError for an unknown id."""
        cartridge = self.current.get(record_id)
        if cartridge is None:
            known = ", ".join(self.current) or "none"
            raise ConfigError(f"there is no cartridge {record_id!r}; the cartridges are: {known}")
        return cartridge

    def sync(self, records: Sequence[CartridgeRecord]) -> list[Cartridge]:
        """Bring the cartridges to `records`, in their order; returns those that have become unwanted.

        One whose record is the same stays as it is; one that was retired under the same record and still runs comes
        back. Raises ConfigError, and changes nothing, for an id that is there twice or is an attached cartridge's.
        """
        before = self.current
        attached = [cartridge for cartridge in before.values() if cartridge.attached]
        for name, count in Counter([*(record.id for record in records), *(one.id for one in attached)]).items():
            if count > 1:
                raise ConfigError(f"two cartridges have the id {name!r}: give each an id of its own")
        self.current = {record.id: self._cartridge(before.get(record.id), record) for record in records}
        self.current.update((cartridge.id, cartridge) for cartridge in attached)
        retired = [cartridge for cartridge in before.values() if self.current.get(cartridge.id) is not cartridge]
        for cartridge in retired:
            log.info("cartridge %r is retired: it takes no new requests", cartridge.id)
            cartridge.retired_at = self._x.clock()
            self._x.withdraw_caps(cartridge)
        self._retired += retired
        return retired

    def _cartridge(self, present: Cartridge | None, record: CartridgeRecord) -> Cartridge:
        if present is not None and present.record == record:
            return present
        found = next((cartridge for cartridge in self._retired if cartridge.record == record), None)
        if found is None:
            found = Cartridge(record, self._x.settings)
        else:
            self._retired.remove(found)
            found.retired_at = None
            log.info("cartridge %r is wanted again", record.id)
        self._x.offer_caps(found)
        return found

    def attach(self, name: str) -> Cartridge:
        """Return a new cartridge for a link that was made elsewhere. Raises ConfigError for an id that is taken."""
        if name in self.current:
            raise ConfigError(f"there is a cartridge {name!r} already: attach this one under another id")
        record = CartridgeRecord(name, ["(attached)"])
        self.current[name] = cartridge = Cartridge(record, self._x.settings, attached=True)
        return cartridge

    def drop(self, cartridge: Cartridge) -> None:
        """Forget a cartridge that is over."""
        self._x.withdraw_caps(cartridge)
        if cartridge in self._retired:
            self._retired.remove(cartridge)
        elif self.current.get(cartridge.id) is cartridge:
            del self.current[cartridge.id]
