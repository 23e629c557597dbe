"""Slots of an arena for :class:`kvpool.store.PrefixStore`: who has one, and what is kept in those that
nobody has.

Owns: free slots, and the order in which kept content goes: what was used last goes last. Content that
is still to be written to the store (dirty) does not go before it is.
"""

from __future__ import annotations

import collections
import itertools
from typing import TYPE_CHECKING

from kvpool.errors import SlotBusyError

if TYPE_CHECKING:
    from kvpool._core.store import Arena

__all__ = ["Slots"]


class Slots:
    """Slots by number: free, had by somebody, or kept with content that can be found by its digest.

    Args:
        arena: Whose slots.
        keeps: Whether content stays when nobody has its slot any more. Otherwise such slots are free.
    """

    def __init__(self, arena: Arena, *, keeps: bool) -> None:
        self._arena, self._keeps = arena, keeps
        self._free = collections.deque(range(arena.slots))
        #: How many have a slot; not there if none.
        self._users: collections.Counter[int] = collections.Counter()
        #: Slots by the digest of what they have, that which goes first in front.
        self._by_digest: collections.OrderedDict[bytes, int] = collections.OrderedDict()
        self._digests: dict[int, bytes] = {}
        #: Slots that are still to be written, with the first token of their block.
        self._dirty: dict[int, int] = {}

    @property
    def reclaimable(self) -> int:
        """Slots that could be taken, at least: a slot that is dirty and in use counts as two that cannot."""
        return len(self._free) + max(0, len(self._digests) - len(self._dirty) - len(self._users))

    def find(self, digest: bytes) -> int | None:
        """Returns the slot that has this content."""
        return self._by_digest.get(digest)

    def take(self, wanted: int) -> list[int]:
        """Takes slots for new content, as many as are wanted and there: free ones, then what was not
        used for longest.

        None is taken that a transfer which timed out still has.
        """
        taken: list[int] = []
        for _ in range(len(self._free)):
            if len(taken) == wanted:
                break
            self._take(self._free.popleft(), taken)
        if len(taken) < wanted:
            kept = (
                slot
                for slot in self._by_digest.values()
                if slot not in self._users and slot not in self._dirty
            )
            for slot in list(itertools.islice(kept, wanted - len(taken))):
                self._forget(slot)
                self._take(slot, taken)
        return taken

    def _take(self, slot: int, taken: list[int]) -> None:
        try:
            self._arena.write(slot, b"")
        except SlotBusyError:
            self._free.append(slot)
        else:
            self._users[slot] = 1
            taken.append(slot)

    def use(self, slot: int) -> None:
        """One more has this slot."""
        self._users[slot] += 1

    def leave(self, slots: list[int]) -> None:
        """One has these slots no more. Of several, the first is used last: what follows it is of no use
        without it.
        """
        for slot in reversed(slots):
            self._users[slot] -= 1
            if self._users[slot] > 0:
                continue
            del self._users[slot]
            if slot in self._digests and self._keeps:
                self._by_digest.move_to_end(self._digests[slot])
            else:
                self._forget(slot)
                self._free.append(slot)

    def keep(self, slot: int, digest: bytes) -> None:
        """Says what a slot has. What another slot has already is not found here."""
        if digest not in self._by_digest:
            self._by_digest[digest] = slot
            self._digests[slot] = digest

    def soil(self, slot: int, first_token: int) -> None:
        """The content of a slot is still to be written to the store."""
        if slot in self._digests:
            self._dirty[slot] = first_token

    def next_dirty(self) -> tuple[int, bytes, int] | None:
        """Takes the slot that has been dirty for longest: with its digest and first token. It is dirty
        no more.
        """
        slot = next((slot for slot in self._dirty if slot not in self._users), None)
        if slot is None:
            return None
        self._users[slot] = 1
        return slot, self._digests[slot], self._dirty.pop(slot)

    def forget_all(self) -> None:
        """Nothing is found any more. Slots that somebody has are free when they have not."""
        for slot in list(self._digests):
            self._forget(slot)
            if slot not in self._users:
                self._free.append(slot)

    def _forget(self, slot: int) -> None:
        self._dirty.pop(slot, None)
        digest = self._digests.pop(slot, None)
        if digest is not None:
            del self._by_digest[digest]
