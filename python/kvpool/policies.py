"""Eviction policies: those of the core by name, and a base class for your own in Python, for experiments.

:func:`eviction_policies` names those of the core. Give a name, or an object of a :class:`Policy` of
your own, to ``BlockPool`` or ``CacheManager`` as ``eviction``. A policy is an order of blocks and the
history that it is made from. The core does the rest: it never evicts a block in use or one on which
cached blocks hang, and it keeps retention around the policy's order.

>>> import kvpool
>>> class MostRecent(kvpool.policies.Policy):
...     def __init__(self) -> None:
...         self.blocks: dict[int, None] = {}
...
...     def release(self, block: int) -> None:
...         self.blocks[block] = None
...
...     def pop(self) -> int | None:
...         return self.blocks.popitem()[0] if self.blocks else None
...
...     def forget(self, block: int) -> None:
...         self.blocks.pop(block, None)
...
...     hit = forget  # what is in use is not in the order
>>> manager = kvpool.CacheManager(num_blocks=8, block_size=2, eviction=MostRecent())
>>> for name, prompt in (("a", [1, 2, 3]), ("b", [4, 5, 6])):
...     _ = manager.admit(name, prompt), manager.commit(name, 3), manager.release(name)
>>> manager.eviction_order()  # the block of b, released last, goes first
[2, 1]
>>> manager.check_policy()  # nothing went wrong

Nothing that a policy does can fail an allocation or break an invariant, because the pool keeps a plain
LRU order of the same blocks beside it. The first exception that a policy raises ends it. So does the
first answer of :meth:`Policy.pop` that is no block of its order: None while it has some, a block twice,
a forgotten block, something else. A ``RuntimeWarning`` reports the end at once, the pool uses the LRU
order from then on, and ``check_policy()`` raises :class:`kvpool.errors.PolicyError` with the cause.

The rules:

- A policy is called while its pool is locked, by one thread at a time. It must not call its pool, not even in
  ``__deepcopy__`` and ``__del__``: that raises ``PolicyError`` in the policy.
- ``KeyboardInterrupt`` and ``SystemExit`` end it, too, and then reach the caller of the pool: the call
  has been done with the LRU order, and its answer is lost.
- One object serves one pool. It must not refer to the pool: the garbage collector does not see through
  the pool, and would never free the two.
- ``eviction_order()`` asks a ``copy.deepcopy`` of the policy, and shows the LRU order if it cannot be copied.
- Every call costs a Python call, some microseconds per block where a policy in Rust takes a tenth of
  one: for replays and experiments, not for servers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from kvpool._core.policies import eviction_policies

__all__ = ["Policy", "eviction_policies"]


class Policy(ABC):
    """An order of blocks: ``release`` puts a block in, ``pop`` takes the next victim out.

    A subclass has ``release``, ``pop`` and ``forget``. The other methods are called only if it has them, too.

    Blocks are ints from 1. A *content* is what a block holds from ``admit`` to ``evicted`` or
    ``forget``; its ``key`` is the same whenever the same tokens are cached, in whatever block, and its
    ``depth`` is its position in its prompt, from 0.
    """

    @abstractmethod
    def release(self, block: int) -> None:
        """A block lost its last holder: it has to be in the order now.

        Blocks of one release come deepest first. The block may be in the order already, if ``hit`` left
        it there.
        """

    @abstractmethod
    def pop(self) -> int | None:
        """Takes the next victim out of the order.

        It may still be needed: the pool then gives it back later (``unpop``), and asks for another
        meanwhile. None if the order is empty.
        """

    @abstractmethod
    def forget(self, block: int) -> None:
        """A content is gone without having been evicted, or its block is kept by priority now.

        The block may not be in the order.
        """

    def admit(self, block: int, key: int, depth: int) -> None:  # noqa: B027 (optional)
        """A block in use has a new content. It is not in the order before it is released."""

    def hit(self, block: int) -> None:  # noqa: B027
        """A lookup took a block, idle or in use. It may stay in the order: the pool minds what is in use."""

    def take(self, block: int) -> None:
        """Takes a block out of the order as ``pop`` would; without this method, ``forget`` is called."""
        self.forget(block)

    def unpop(self, block: int) -> None:  # noqa: B027
        """A block that ``pop`` or ``take`` gave up is next again; without this method, the pool
        remembers that.
        """

    def evicted(self, block: int, key: int, depth: int) -> None:  # noqa: B027
        """The content of a block that ``pop`` or ``take`` gave up is gone; a ghost may remember its key."""

    def clear(self) -> None:  # noqa: B027
        """All contents are gone; without this method, ``forget`` is called for each."""


def __dir__() -> list[str]:
    """Lists the public names."""
    return [*__all__]
