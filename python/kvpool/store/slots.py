"""Manages the slots of an arena for :class:`kvpool.store.PrefixStore`: users and kept content.

This module owns the free slots, and the order in which kept content is evicted: least recently used
first. *Dirty* content still has to be written to the store, and is not evicted before that.
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
    """The slots of an arena, by number.

    A slot is free, in use, or keeps content that can be found by its digest.

    Args:
        arena: The arena.
        keeps: Whether slots keep their content when nothing uses them any more. Otherwise they become
            free.
    """

    def __init__(self, arena: Arena, *, keeps: bool) -> None:
        self._arena, self._keeps = arena, keeps
        self._free = collections.deque(range(arena.slots))
        #: Number of users of each slot. Slots without users have no entry.
        self._users: collections.Counter[int] = collections.Counter()
        #: Slots by the digest of their content, in the order of eviction. The next victim is first.
        self._by_digest: collections.OrderedDict[bytes, int] = collections.OrderedDict()
        self._digests: dict[int, bytes] = {}
        #: Dirty slots, each with the position of its block's first token in the prompt.
        self._dirty: dict[int, int] = {}

    @property
    def reclaimable(self) -> int:
        """A lower bound of the number of slots that can be taken.

        A slot that is both dirty and in use is subtracted twice, so the real number may be higher.
        """
        return len(self._free) + max(0, len(self._digests) - len(self._dirty) - len(self._users))

    def find(self, digest: bytes) -> int | None:
        """Returns the slot that has this content, or None."""
        return self._by_digest.get(digest)

    def take(self, wanted: int) -> list[int]:
        """Takes at most ``wanted`` slots: first free slots, then the least recently used ones.

        Skips slots that are still part of a transfer that has timed out.
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

        The first slot becomes the most recently used one, because the blocks in the other slots cannot
        be used without the block in the first.
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
        """Records the content of a slot, so that ``find`` can return the slot.

        If another slot already has this content, ``find`` continues to return that slot.
        """
        if digest not in self._by_digest:
            self._by_digest[digest] = slot
            self._digests[slot] = digest

    def mark_dirty(self, slot: int, first_token: int) -> None:
        """Marks a slot's content as still to be written to the store."""
        if slot in self._digests:
            self._dirty[slot] = first_token

    def next_dirty(self) -> tuple[int, bytes, int] | None:
        """Takes the slot that has been dirty for the longest time.

        Returns it with its digest and the position of its first token.

        The slot is in use and no longer dirty afterwards. Returns None if no dirty slot is unused.
        """
        slot = next((slot for slot in self._dirty if slot not in self._users), None)
        if slot is None:
            return None
        self._users[slot] = 1
        return slot, self._digests[slot], self._dirty.pop(slot)

    def forget_all(self) -> None:
        """Drops all content. Slots in use become free when their last user leaves."""
        for slot in list(self._digests):
            self._forget(slot)
            if slot not in self._users:
                self._free.append(slot)

    def _forget(self, slot: int) -> None:
        self._dirty.pop(slot, None)
        digest = self._digests.pop(slot, None)
        if digest is not None:
            del self._by_digest[digest]
