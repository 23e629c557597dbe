"""Eviction policies: those of the core by name, and a base class for your own in Python, for experiments.

:func:`eviction_policies` lists those of the core. Pass a name, or an object of your own
:class:`Policy`, to ``BlockPool`` or ``CacheManager`` as ``eviction``. A policy is an order of blocks,
and the history that it is based on. The core does the rest: it never evicts a block in use, or a block
that is the parent of cached blocks, and it applies retention around the policy's order.

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
>>> manager.diagnose.eviction_order()  # the block of b, released last, goes first
[2, 1]
>>> manager.diagnose.check_policy()  # nothing went wrong

No policy can make an allocation fail or break an invariant, because the pool keeps a plain LRU order of
the same blocks beside it. The first exception that a policy raises ends it. So does the first wrong
answer of :meth:`Policy.pop`: None while its order has blocks, a block twice, a block that was
forgotten, or anything else that is not a block in its order. A ``RuntimeWarning`` reports the end at
once. From then on, the pool uses the LRU order, and ``diagnose.check_policy()`` raises
:class:`kvpool.errors.PolicyError` with the cause.

The rules:

- A policy is called while its pool is locked, by one thread at a time. It must not call its pool, not
  even in ``__deepcopy__`` and ``__del__``. Such a call raises ``PolicyError`` in the policy.
- ``KeyboardInterrupt`` and ``SystemExit`` end it, too, and are then passed on to the caller of the
  pool. The call has been completed with the LRU order, and its result is lost.
- One object serves one pool. It must not refer to the pool, because the garbage collector cannot follow
  references through the pool and would never free the two.
- ``diagnose.eviction_order()`` uses a ``copy.deepcopy`` of the policy, and shows the LRU order if it
  cannot be copied.
- Every call is a Python call. It takes some microseconds per block, more than ten times as long as a
  policy in Rust. Use it for replays and experiments, not for servers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from kvpool._core.policies import eviction_policies

__all__ = ["Policy", "eviction_policies"]


class Policy(ABC):
    """An order of blocks: ``release`` adds a block, ``pop`` removes the next victim.

    A subclass must have ``release``, ``pop`` and ``forget``. The other methods are called only if it
    has them, too.

    Blocks are ints from 1. A *content* is the data in a block from ``admit`` to ``evicted`` or
    ``forget``. Its ``key`` is the same whenever the same tokens are cached, in any block. Its ``depth``
    is its position in its prompt, from 0.
    """

    @abstractmethod
    def release(self, block: int) -> None:
        """Called after a block lost its last holder. It must be in the order from now on.

        Blocks of one release are passed deepest first. The block may already be in the order, if
        ``hit`` left it there.
        """

    @abstractmethod
    def pop(self) -> int | None:
        """Removes the next victim from the order and returns it.

        The pool may still need the block. It then gives it back later (``unpop``), and calls ``pop``
        again meanwhile. Returns None if the order is empty.
        """

    @abstractmethod
    def forget(self, block: int) -> None:
        """Called after a content was dropped without being evicted, or its block is now kept by priority.

        The block may not be in the order.
        """

    def admit(self, block: int, key: int, depth: int) -> None:  # noqa: B027 (optional)
        """Called when a block in use gets new content. It is not in the order before it is released."""

    def hit(self, block: int) -> None:  # noqa: B027
        """Called when a lookup takes a block, idle or in use.

        It may stay in the order: the pool skips blocks in use.
        """

    def take(self, block: int) -> None:
        """Removes a block from the order, like ``pop``. Without this method, ``forget`` is called."""
        self.forget(block)

    def unpop(self, block: int) -> None:  # noqa: B027
        """Makes a block that ``pop`` or ``take`` removed the next victim again.

        Without this method, the pool remembers it.
        """

    def evicted(self, block: int, key: int, depth: int) -> None:  # noqa: B027
        """Called after a block from ``pop`` or ``take`` lost its content.

        A ghost list may remember its key.
        """

    def clear(self) -> None:  # noqa: B027
        """Called after all contents were dropped. Without this method, ``forget`` is called for each."""


def __dir__() -> list[str]:
    """Lists the public names."""
    return [*__all__]
