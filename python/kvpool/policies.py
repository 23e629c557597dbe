"""Eviction policies: the built-in ones by name, and a base class for experimental policies in Python.

:func:`eviction_policies` lists the built-in policies. Pass one of these names, or an object of your own
subclass of :class:`Policy`, to ``BlockPool`` or ``CacheManager`` as ``eviction``. A policy only keeps
the blocks in an order of eviction, and the history on which the order is based. The core does the rest.
It never evicts a block in use or a block that is the parent of cached blocks, and it applies retention
in addition to the policy's order.

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

No policy can make an allocation fail or break an invariant, because the pool also keeps the same blocks
in a plain LRU order. The pool stops using a policy after its first exception, or after the first wrong
answer of :meth:`Policy.pop`. A wrong answer is None while the order has blocks, a block that was
returned twice, a block that was forgotten, or anything else that is not a block in the order. A
``RuntimeWarning`` reports this at once. From then on, the pool uses the LRU order, and
``diagnose.check_policy()`` raises :class:`kvpool.errors.PolicyError` with the cause.

The rules:

- A policy is called while its pool is locked, by one thread at a time. It must not call its pool, not
  even in ``__deepcopy__`` and ``__del__``. Such a call raises ``PolicyError`` in the policy.
- If a policy raises ``KeyboardInterrupt`` or ``SystemExit``, the pool also stops using it, and passes
  the exception to its own caller. The caller's operation has been completed with the LRU order, but its
  result is lost.
- One object serves one pool. It must not refer to the pool, because the garbage collector cannot follow
  references through the pool and would never free the two.
- ``diagnose.eviction_order()`` uses a ``copy.deepcopy`` of the policy. If the policy cannot be copied,
  it shows the LRU order.
- Every call of a policy is a Python call. It takes some microseconds per block, more than ten times as
  long as a policy in Rust. Use Python policies for replays and experiments, not for servers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from kvpool._core.policies import eviction_policies

__all__ = ["Policy", "eviction_policies"]


class Policy(ABC):
    """An order of blocks, in which ``release`` adds a block and ``pop`` removes the next victim.

    A subclass must define ``release``, ``pop`` and ``forget``. The other methods are optional, and are
    called only if the subclass defines them.

    Blocks are ints, starting at 1. A *content* is the data that a block has from ``admit`` until
    ``evicted`` or ``forget``. Its ``key`` is the same whenever the same tokens are cached, in any
    block. Its ``depth`` is its position in its prompt, counted in blocks from 0.
    """

    @abstractmethod
    def release(self, block: int) -> None:
        """Called after the last reference to a block has been released. Add the block to the order.

        If several blocks are released together, the deepest block is passed first. The block may
        already be in the order, if ``hit`` did not remove it.
        """

    @abstractmethod
    def pop(self) -> int | None:
        """Removes the next victim from the order and returns it.

        If the pool cannot evict the block now, it calls ``pop`` for another block, and later returns
        this one with ``unpop``. Returns None if the order is empty.
        """

    @abstractmethod
    def forget(self, block: int) -> None:
        """Called when a block has to leave the order: its content was dropped, or a hint applies to it.

        Remove the block from the order if it is there. It may not be.
        """

    def admit(self, block: int, key: int, depth: int) -> None:  # noqa: B027 (optional)
        """Called when a block in use gets new content. ``release`` later adds the block to the order."""

    def hit(self, block: int) -> None:  # noqa: B027
        """Called when a lookup acquires a block, whether the block was cached-free or in use.

        The block may remain in the order, because the pool skips blocks in use.
        """

    def take(self, block: int) -> None:
        """Called when the pool itself chooses a block to evict, instead of calling ``pop``.

        Without this method, ``forget`` is called.
        """
        self.forget(block)

    def unpop(self, block: int) -> None:  # noqa: B027
        """Called when a block that ``pop`` or ``take`` removed was not evicted.

        Make it the next victim again.

        If a subclass does not define this method, the pool itself makes the block the next victim.
        """

    def evicted(self, block: int, key: int, depth: int) -> None:  # noqa: B027
        """Called after a block that ``pop`` or ``take`` removed has lost its content.

        Policies with a ghost list (a list of the keys of evicted contents) can add the key to it here.
        """

    def clear(self) -> None:  # noqa: B027
        """Called after all contents were dropped. By default, ``forget`` is called for each block."""


def __dir__() -> list[str]:
    """Lists the public names."""
    return [*__all__]
