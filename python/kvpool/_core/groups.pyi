"""KV-cache groups of hybrid models."""

from typing import ClassVar, Literal, Self, TypeAlias, final

__all__ = [
    "GroupFit",
    "GroupSpec",
]

_GroupKind: TypeAlias = Literal["full", "sliding", "chunked", "state", "cross"]

@final
class GroupSpec:
    """A KV-cache group: layers that keep the same tokens of a request, in blocks of the same size.

    Most current models mix layers that read all tokens with layers that read a window, a chunk, or a
    recurrent state. A manager with groups (``CacheManager(groups=[...])``) has one block table for each
    request and group. All tables use blocks of one pool. The group that can serve the fewest tokens limits
    each hit.

    Args:
        kind: ``"full"``: each token reads all tokens before it. This includes multi-head latent attention.
            ``"sliding"``: a token reads itself and the ``window - 1`` tokens before it. ``"chunked"``: a
            token reads the tokens before it in its own chunk, as in Llama 4's local attention. ``"state"``: a
            recurrent state, such as Mamba's. Its table has one block, which every step overwrites. Copies of
            this block are cached. ``"cross"``: the output of an encoder, which is never cached. See
            ``extend``.
        block_size: Tokens per block, a multiple of the manager's ``block_size``, in which prompts are
            hashed. With ``keep="none"`` any number.
        window: The number of tokens that a token of a sliding window reads, itself included.
        chunk: The number of tokens of a chunk.
        sink: The number of first tokens that every token reads in addition to its window (attention sinks).
            The blocks of these tokens remain in the table, and a hit needs them. Only for ``"sliding"``.
        keep: Selects the blocks of a window or chunk, or the states, that remain cached. ``"all"`` keeps all
            of them. With an int, hits can end at multiples of this number of tokens, and the blocks that
            these hits read remain cached. ``"junctions"`` and an int also keep the blocks for a hit at the
            end of the prompt, and at the token where an earlier request diverged from this one. ``"none"``
            keeps nothing. Full attention allows only ``"all"`` and ``"none"``. vLLM calls this setting
            ``prefix_cache_retention_interval``. With ``"none"`` the group never limits a hit, and a hit
            contains none of its blocks: entries before the end of the hit are block 0, and a state is a new
            block. Use it for layers that do not read the prompt, such as the heads of a draft model.
        margin: The number of blocks at the end of a hit that are computed again, because speculative heads
            need them. 1 for a group that EAGLE or MTP heads read.
        partial_hits: Whether a hit may end inside a block, after any multiple of the manager's ``block_size``
            tokens. The transfer plan then copies that block for the request. Only for ``"full"``, and without
            a margin. When a request ends, the computed part of its last block remains cached. Takes 72 bytes
            per block and hash unit (``block_size`` tokens of the manager).

    Raises:
        InvalidArgumentError: The kind is unknown. Or a size is missing, is not for this kind, or is out
            of range.

    >>> kvpool.GroupSpec("sliding", 16, window=1024)
    GroupSpec('sliding', 16, window=1024)
    >>> kvpool.GroupSpec("state", 64, keep=2048).keep
    2048

    This example has blocks of 64 tokens, and hits can end after every 8 tokens. The second turn of a
    conversation hits the computed part of the first turn, and appends to a copy of its last block:

    >>> full = kvpool.GroupSpec("full", 64, partial_hits=True)
    >>> manager = kvpool.CacheManager(num_blocks=64, block_size=8, groups=[full])
    >>> _ = manager.admit("turn 1", range(90)), manager.commit("turn 1", 90), manager.release("turn 1")
    >>> turn = manager.admit("turn 2", range(120))
    >>> turn.cached_tokens, turn.block_ids, len(manager.take_plan())
    (88, [1, 3], 1)

    This example is a model with full attention and with a window of 8 tokens:

    >>> groups = [kvpool.GroupSpec("full", 4), kvpool.GroupSpec("sliding", 4, window=8)]
    >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4, groups=groups)
    >>> manager.admit("a", range(20)).tables
    [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
    >>> manager.commit("a", 20)
    10
    >>> manager.block_ids("a", group=1)  # the token at position 20 reads no further back than 13
    [0, 0, 0, 9, 10]
    >>> manager.append(["a"], [7])
    [(0, 5, 11, 0), (0, 5, 12, 1)]

    This is the same model with four attention sinks, whose block remains in the table:

    >>> groups = [kvpool.GroupSpec("full", 4), kvpool.GroupSpec("sliding", 4, window=8, sink=4)]
    >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4, groups=groups)
    >>> _ = manager.admit("a", range(20)), manager.commit("a", 20)
    >>> manager.block_ids("a", group=1)
    [6, 0, 0, 9, 10]
    """

    def __new__(
        cls,
        kind: _GroupKind,
        block_size: int = 16,
        *,
        window: int | None = None,
        chunk: int | None = None,
        sink: int = 0,
        keep: Literal["all", "junctions", "none"] | int = "all",
        margin: int = 0,
        partial_hits: bool = False,
    ) -> Self: ...
    @property
    def kind(self) -> _GroupKind:
        """The kind of the group: full, sliding, chunked, state or cross."""
    @property
    def block_size(self) -> int:
        """The number of tokens per block."""
    @property
    def window(self) -> int | None:
        """The number of tokens that a token of a sliding window reads, itself included. Otherwise None."""
    @property
    def chunk(self) -> int | None:
        """The number of tokens of a chunk. None for other kinds."""
    @property
    def sink(self) -> int:
        """The number of first tokens that every token reads in addition to its window."""
    @property
    def keep(self) -> Literal["all", "junctions", "none"] | int:
        """The selection of blocks that remain cached: all, junctions, none, or a number of tokens.

        With a number, hits can end at multiples of this number of tokens.
        """
    @property
    def margin(self) -> int:
        """The number of blocks at the end of a cached prefix that speculative heads compute again."""
    @property
    def partial_hits(self) -> bool:
        """Whether a hit may end inside a block."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class GroupFit:
    """The result of ``fit`` for one KV-cache group.

    >>> groups = [kvpool.GroupSpec("full", 4), kvpool.GroupSpec("state", 4, keep=8)]
    >>> manager = kvpool.CacheManager(num_blocks=64, block_size=4, groups=groups)
    >>> _ = manager.admit("a", range(20), allocate_tokens=8)
    >>> manager.next_checkpoint("a"), manager.commit("a", 8)  # the first chunk ends where a state is kept
    (8, 2)
    >>> _ = manager.take_plan(), manager.extend("a", 20), manager.commit("a", 20)
    >>> manager.fit(range(20), by_group=True)
    [GroupFit(reach_tokens=16, new_blocks=3), GroupFit(reach_tokens=8, new_blocks=1)]
    """

    @property
    def reach_tokens(self) -> int:
        """The number of tokens of the longest hit that the group alone would serve."""
    @property
    def new_blocks(self) -> int:
        """The number of new blocks that the admission would need in this group."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
