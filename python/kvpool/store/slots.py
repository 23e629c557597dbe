"""Slots of an arena for :class:`kvpool.store.PrefixStore`: their users and their kept content.

This module owns the free slots, and the order in which kept content is evicted: least recently used
first. Content that still has to be written to the store (dirty) is not evicted before that.
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
    """Slots by number. A slot is free, in use, or kept with content that can be found by its digest.

    Args:
        arena: The arena of the slots.
        keeps: Whether unused slots keep their content. Otherwise they become free.
    """

    def __init__(self, arena: Arena, *, keeps: bool) -> None:
        self._arena, self._keeps = arena, keeps
        self._free = collections.deque(range(arena.slots))
        #: Number of users per slot; slots without users are absent.
        self._users: collections.Counter[int] = collections.Counter()
        #: Slots by the digest of their content, the one that is evicted first in front.
        self._by_digest: collections.OrderedDict[bytes, int] = collections.OrderedDict()
        self._digests: dict[int, bytes] = {}
        #: Slots that are still to be written, with the first token of their block.
        self._dirty: dict[int, int] = {}

    @property
    def reclaimable(self) -> int:
        """A lower bound of the slots that can be taken.

        A slot that is dirty and in use counts as two that cannot.
        """
        return len(self._free) + max(0, len(self._digests) - len(self._dirty) - len(self._users))

    def find(self, digest: bytes) -> int | None:
        """Returns the slot with this content."""
        return self._by_digest.get(digest)

    def take(self, wanted: int) -> list[int]:
        """Takes at most ``wanted`` slots for new content: free ones, then the least recently used ones.

        Skips slots that a timed-out transfer still holds.
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
        """Adds a user to a slot."""
        self._users[slot] += 1

    def leave(self, slots: list[int]) -> None:
        """Removes one user from each slot.

        The first slot counts as used last, because the others cannot be used without it.
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
        """Assigns content to a slot.

        If another slot already has this content, ``find`` keeps returning that one.
        """
        if digest not in self._by_digest:
            self._by_digest[digest] = slot
            self._digests[slot] = digest

    def mark_dirty(self, slot: int, first_token: int) -> None:
        """Marks a slot's content as still to be written to the store."""
        if slot in self._digests:
            self._dirty[slot] = first_token

    def next_dirty(self) -> tuple[int, bytes, int] | None:
        """Takes the slot that has been dirty for longest. Returns it with its digest and first token.

        It is not dirty any more.
        """
        slot = next((slot for slot in self._dirty if slot not in self._users), None)
        if slot is None:
            return None
        self._users[slot] = 1
        return slot, self._digests[slot], self._dirty.pop(slot)

    def forget_all(self) -> None:
        """Drops all content. Slots in use become free when their last user leaves them."""
        for slot in list(self._digests):
            self._forget(slot)
            if slot not in self._users:
                self._free.append(slot)

    def _forget(self, slot: int) -> None:
        self._dirty.pop(slot, None)
        digest = self._digests.pop(slot, None)
        if digest is not None:
            del self._by_digest[digest]
