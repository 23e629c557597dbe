"""The memory layout of an SGLang host pool's pages, and the copies between pages and slots of a store.

The pages of a pool are of one of three kinds:

- ``Lent`` pages are themselves slots, because the pool's memory is the store's arena. A page consists
  of one part, or of two parts if keys and values are separate.
- ``Copied`` pages consist of many pieces. They are copied through slots that this module allocates.
- ``Empty`` pages have no bytes, because some pools of SGLang only count.

The kind follows from the addresses of the pool's pages, not from the name of its layout. This module
imports no class of SGLang. Copies run in the calling thread. torch is imported when the first pool is
registered.
"""

from __future__ import annotations

import collections
import itertools
import mmap
import threading
from typing import TYPE_CHECKING, Any, Final

from kvpool.errors import InvalidArgumentError, SlotBusyError
from kvpool.store import Arena

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Copied", "Empty", "Lent", "Pages", "pages_of"]

#: The largest number of slots for copied pages: enough for two of SGLang's batches, if memory allows.
_SLOTS: Final = 256
_ALIGNMENT: Final = 4096


class Pages:
    """The base class of the three kinds of pages.

    Args:
        pool: SGLang's host pool.
        shape: The number of items of a page in each dimension.
        parts: The number of store objects per page.
        part_bytes: The bytes of each such object.
    """

    def __init__(self, pool: Any, shape: Sequence[int], parts: int, part_bytes: int) -> None:
        self.pool = pool
        self.page_size = int(getattr(pool, "page_size", None) or 1)
        self.shape = [int(length) for length in shape]
        self.parts = parts
        self.part_bytes = part_bytes
        self._first_indices = range(0, int(pool.size), self.page_size)

    @property
    def strides(self) -> list[int]:
        """The strides of a stored page, in items, for each dimension.

        The parts of a page are stored consecutively.
        """
        steps = itertools.accumulate(reversed(self.shape[1:]), lambda step, length: step * length, initial=1)
        return list(reversed(list(steps)))[: len(self.shape)]

    def first_indices(self, host_indices: Any, pages: int) -> list[int] | None:
        """Returns the first token's index of each page.

        Returns None if these are not the indices of ``pages`` whole pages.
        """
        if host_indices is None or int(host_indices.numel()) != pages * self.page_size:
            return None
        first = [int(index) for index in host_indices[:: self.page_size].tolist()]
        return first if all(index in self._first_indices for index in first) else None


class Empty(Pages):
    """Pages of a pool that has no bytes of its own. Other pools hold the bytes for the same indices."""

    def __init__(self, pool: Any) -> None:
        super().__init__(pool, [0], 0, 0)


class Lent(Pages):
    """Pages in the pool's own memory, which is the arena of the store.

    Args:
        bases: For each part, its slot in the pool's first page.
    """

    def __init__(
        self, pool: Any, shape: Sequence[int], part_bytes: int, bases: Sequence[int], arena: Arena
    ) -> None:
        super().__init__(pool, shape, len(bases), part_bytes)
        self.arena = arena
        self._bases = list(bases)

    def slots(self, first_indices: Sequence[int]) -> list[int]:
        """Returns the slots of these pages: all parts of the first page, then those of the next."""
        return [base + index // self.page_size for index in first_indices for base in self._bases]


class Copied(Pages):
    """Pages that are copied into slots and out of them.

    Args:
        pool: SGLang's host pool.
        shape: The number of items of a page in each dimension.
        page: A flat page of the pool.
        staging_bytes: The largest number of bytes of all slots together. There is always at least one slot.
    """

    def __init__(self, pool: Any, shape: Sequence[int], page: Any, staging_bytes: int) -> None:
        import torch

        self._torch, self._dtype = torch, page.dtype
        super().__init__(pool, shape, 1, int(page.numel()) * int(page.element_size()))
        slot_bytes = -(-self.part_bytes // _ALIGNMENT) * _ALIGNMENT
        count = max(1, min(_SLOTS, staging_bytes // slot_bytes))
        # An mmap starts at a page boundary, and takes up memory only where it has been written.
        self._mapping = mmap.mmap(-1, count * slot_bytes)
        self.arena = Arena.over(self._mapping, slot_bytes)
        self._memory = torch.frombuffer(self._mapping, dtype=torch.uint8).view(count, slot_bytes)
        self._is_viewed = _is_view(pool.get_data_page(0, flat=False), getattr(pool, "kv_buffer", None))
        self._left = collections.deque(range(count))
        self._given = threading.Condition()

    def take(self, pages: int, timeout: float) -> list[int]:
        """Takes one or more slots. Returns an empty list if all slots remain busy.

        Waits while other calls have taken all slots. Skips a slot that a back end still uses after its
        deadline.

        Args:
            pages: The largest number of slots to take.
            timeout: The largest number of seconds to wait.
        """
        with self._given:
            self._given.wait_for(lambda: self._left, timeout)
            taken: list[int] = []
            for _ in range(len(self._left)):
                slot = self._left.popleft()
                if len(taken) < pages and self._is_free(slot):
                    taken.append(slot)
                else:
                    self._left.append(slot)
            return taken

    def _is_free(self, slot: int) -> bool:
        try:
            self.arena.write(slot, b"")
        except SlotBusyError:
            return False
        return True

    def give(self, slots: Sequence[int]) -> None:
        """Frees slots, so that other calls can take them."""
        with self._given:
            self._left.extend(slots)
            self._given.notify_all()

    def read(self, slot: int, first_index: int) -> None:
        """Copies a page of the pool into a slot."""
        self.copy_in(slot, self.pool.get_data_page(first_index, flat=False))

    def write(self, slot: int, first_index: int) -> None:
        """Copies a slot into a page of the pool."""
        if self._is_viewed:
            self.copy_out(slot, self.pool.get_data_page(first_index, flat=False))
        else:
            self.pool.set_from_flat_data_page(first_index, self._slot_tensor(slot).view(self._dtype))

    def copy_in(self, slot: int, tensor: Any) -> None:
        """Copies the bytes of a tensor into a slot."""
        items = self._items(tensor)
        self._slot_tensor(slot).numpy().reshape(items.shape)[...] = items

    def copy_out(self, slot: int, tensor: Any) -> None:
        """Copies the bytes of a slot into a tensor."""
        items = self._items(tensor)
        items[...] = self._slot_tensor(slot).numpy().reshape(items.shape)

    def _slot_tensor(self, slot: int) -> Any:
        return self._memory[slot, : self.part_bytes]

    def _items(self, tensor: Any) -> Any:
        """Returns a tensor's bytes as a numpy array, because numpy copies in the calling thread.

        torch would use its own threads. They wait for each other, which takes several times as long if
        cores are busy.
        """
        return tensor.view(self._torch.uint8).numpy()


def _is_view(page: Any, memory: Any) -> bool:
    """Returns whether a page is a view of a pool's memory, so that writes to it change the pool."""
    try:
        return bool(page.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr())
    except AttributeError:
        return False


def pages_of(pool: Any, *, lend: bool, staging_bytes: int) -> Lent | Copied | Empty:
    """Determines the kind of a host pool's pages.

    Args:
        pool: SGLang's host pool.
        lend: Whether to lend the pages, if their layout allows it.
        staging_bytes: The largest number of bytes of slots for copied pages.

    Raises:
        InvalidArgumentError: Pages of this pool can be neither lent nor copied.
    """
    try:
        flat = pool.get_dummy_flat_data_page()
        shape = list(pool.get_data_page(0, flat=False).shape)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"pages of {type(pool).__name__} cannot be read in the layout "
            f"{getattr(pool, 'layout', None)!r}: {error}; kvpool takes what the file back end takes: "
            "--hicache-mem-layout page_first, page_first_direct, layer_first or page_head"
        ) from error
    if flat.numel() == 0:
        return Empty(pool)
    lent = _lent(pool, shape, int(flat.numel()) * int(flat.element_size())) if lend else None
    return Copied(pool, shape, flat, staging_bytes) if lent is None else lent


def _lent(pool: Any, shape: Sequence[int], page_bytes: int) -> Lent | None:
    """Returns the pages as slots of the pool's memory; None if a page is not one or two whole slots."""
    import torch

    memory = getattr(pool, "kv_buffer", None)
    if getattr(pool, "shared_allocation_domain", None) is not None:
        return None  # its pages move
    if not isinstance(memory, torch.Tensor) or memory.device.type != "cpu" or not memory.is_contiguous():
        return None
    size, page_size, first = int(pool.size), int(getattr(pool, "page_size", None) or 1), memory.data_ptr()
    tried = {
        index: _addresses(pool, index, page_size)
        for index in (0, page_size, size - page_size)
        if index < size
    }
    parts = tried[0]
    total = memory.numel() * memory.element_size()
    if parts is None or not 1 <= len(parts) <= 2 or len({length for _, length in parts}) != 1:
        return None
    part_bytes = parts[0][1]
    if (
        part_bytes * len(parts) != page_bytes
        or total % part_bytes
        or any((at - first) % part_bytes for at, _ in parts)
    ):
        return None
    bases = [(at - first) // part_bytes for at, _ in parts]
    if any(not 0 <= base + size // page_size - 1 < total // part_bytes for base in bases):
        return None
    for index, found in tried.items():
        if found != [(at + index // page_size * part_bytes, part_bytes) for at, _ in parts]:
            return None
    arena = Arena.over(memory.view(torch.uint8).numpy().data, part_bytes)
    return Lent(pool, shape, part_bytes, bases, arena)


def _addresses(pool: Any, index: int, page_size: int) -> list[tuple[int, int]] | None:
    """Returns the address and the bytes of each part of a page; None if the pool does not provide them."""
    import torch

    try:
        addresses, lengths = pool.get_page_buffer_meta(torch.arange(index, index + page_size))
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return None
    return [(int(at), int(length)) for at, length in zip(addresses, lengths, strict=True)]
