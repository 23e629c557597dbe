"""Manages the slots of an arena for :class:`kvpool.store.PrefixStore`: users and kept content.

This module owns the free slots, and the order in which kept content is evicted: least recently used
first. *Dirty* content still has to be written to the store, and is not evicted before that.
"""

from __future__ import annotations

import collections
import itertools
from typing import TYPE_CHECKING

from kvpool._core.store import busy_slots

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
        unchecked = len(self._free)
        while unchecked and len(taken) < wanted:
            some = [self._free.popleft() for _ in range(min(unchecked, wanted - len(taken)))]
            unchecked -= len(some)
            self._take(some, taken)
        if len(taken) < wanted and self._by_digest:
            kept = (
                slot
                for slot in self._by_digest.values()
                if slot not in self._users and slot not in self._dirty
            )
            evicted = list(itertools.islice(kept, wanted - len(taken)))
            for slot in evicted:
                self._forget(slot)
            self._take(evicted, taken)
        return taken

    def _take(self, slots: list[int], taken: list[int]) -> None:
        busy = set(busy_slots(self._arena, slots))
        for slot in slots:
            if slot in busy:
                self._free.append(slot)
            else:
                self._users[slot] = 1
                taken.append(slot)

    def use(self, slot: int) -> None:
        """Adds a user to a slot."""
        self._users[slot] += 1

    def leave(self, slots: list[int], *, touch: bool = True) -> None:
        """Removes one user from each slot.

        With ``touch``, the first slot becomes the most recently used one, because the blocks in the other
        slots cannot be used without the block in the first.
        """
        for slot in reversed(slots):
            self._users[slot] -= 1
            if self._users[slot] > 0:
                continue
            del self._users[slot]
            if slot in self._digests and self._keeps:
                if touch:
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

    @property
    def dirty(self) -> int:
        """Number of dirty slots."""
        return len(self._dirty)

    def take_dirty(self, most: int) -> list[tuple[int, bytes, int]]:
        """Takes at most ``most`` unused dirty slots, those first that have been dirty for the longest time.

        Returns each with its digest and the position of its first token. The slots are in use and no
        longer dirty afterwards.
        """
        unused = (slot for slot in self._dirty if slot not in self._users)
        slots = list(itertools.islice(unused, most))
        for slot in slots:
            self._users[slot] = 1
        return [(slot, self._digests[slot], self._dirty.pop(slot)) for slot in slots]

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
