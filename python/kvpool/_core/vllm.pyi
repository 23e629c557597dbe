"""The classes that implement ``kvpool.integrations.vllm``.

The documentation here uses vLLM's terms. A digest is the result of a hash function for a block, 16 or 32
bytes. A key is a digest followed by its KV-cache group as 4 bytes, big endian, so it has at most 39 bytes.
"""

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, ClassVar, Literal, Self, final, overload

from kvpool._core.journal import Journal, JournalStats
from kvpool._core.retention import HintReport, Retention, RetentionConfig, RetentionStats

__all__ = [
    "VllmBlock",
    "VllmFeed",
    "VllmGroups",
    "VllmHasher",
    "VllmPool",
    "vllm_block_ids",
]

@final
class VllmBlock:
    """A block of vLLM's pool, with the attributes of vLLM's own block class.

    A pool has one object per block as long as it exists, so ``is`` and ``==`` agree. Like objects of vLLM's
    class, a block cannot be hashed. Attributes are read from the pool at each access, in O(1) unless
    documented otherwise. ``_block_hash`` can be written.
    """

    __hash__: ClassVar[None]  # type: ignore[assignment]

    @property
    def block_id(self) -> int:
        """The id of the block, from 0 to the number of blocks minus 1."""
    @property
    def ref_cnt(self) -> int:
        """The number of references. The null block has 0.

        Writing this attribute does not move the block in the queue of free blocks.
        """
    @ref_cnt.setter
    def ref_cnt(self, count: int) -> None: ...
    @property
    def pool(self) -> Any | None:
        """The object that was passed to ``VllmPool.bind``, or None if it no longer exists."""
    @property
    def is_null(self) -> bool:
        """Whether the block is block 0, the null block."""
    @property
    def block_hash(self) -> bytes | None:
        """The key of the block's content, or None."""
    @property
    def block_hash_num_tokens(self) -> int | None:
        """The number of tokens of the hashed prefix.

        None if the block has no hash, or if vLLM did not set it.
        """
    @property
    def prev_free_block(self) -> Any | None:
        """The free block that is reused before this one, or the queue's head sentinel.

        None if this block is not free. O(free blocks), for tests.
        """
    @property
    def next_free_block(self) -> Any | None:
        """The free block that is reused after this one, or the queue's tail sentinel.

        None if this block is not free. O(free blocks), for tests.
        """
    def set_block_hash(self, block_hash: bytes, num_tokens: int | None = None) -> None:
        """Sets the hash of the block. The entries of the index for the block do not change.

        Raises:
            InvalidArgumentError: The hash has more than 39 bytes.
        """
    def reset_hash(self) -> None:
        """Removes the hash of the block. The entries of the index for the block do not change."""
    def __eq__(self, other: object, /) -> bool: ...

@final
class VllmFeed:
    """The changes of the cached content of one vLLM pool, which a publisher of KV events reports.

    The calls of a pool add the keys that they cache and evict. A :class:`kvpool.events.EventPublisher` reads
    and removes them.

    Args:
        describe: A function that is called if the blocks of a request were hashed with extra keys. It gets
            the request and the token ranges of some of its blocks. It returns the adapter's number and name,
            the salt, the session, and the extra keys of each block.
        capacity: The largest number of changes that wait for the publisher. Further changes are dropped.
            Their content is reported when it is cached again.

    >>> feed = kvpool._core.vllm.VllmFeed(lambda request, blocks: (None, None, None, None, None), 100)
    >>> feed.set_groups([(16, "full_attention", None, True)])
    """

    def __new__(
        cls,
        describe: Callable[
            [Any, list[tuple[int, int]]],
            tuple[int | None, str | None, str | None, str | None, list[Any] | None],
        ],
        capacity: int,
    ) -> Self: ...
    def set_groups(self, groups: Sequence[tuple[int, str, int | None, bool]]) -> None:
        """Sets the KV-cache groups of the pool.

        Each group has the number of tokens per block, its kind, and its window in tokens. The last item is
        True if a cached block is useful only together with the block before it.
        """
    def removed(self, keys: Iterable[tuple[bytes, bool]]) -> None:
        """Adds keys that the pool evicted, in the form in which ``VllmPool.allocate`` returns them."""
    def stored(
        self,
        request: Any,
        hashes: Sequence[bytes],
        first: int,
        block_size: int,
        group: int,
        new: Sequence[bool | None],
    ) -> None:
        """Adds the blocks of a request that were cached, from position ``first`` on.

        ``new`` has an item per block: whether its key is new to the index, or None if the block was skipped.
        """
    def cleared(self) -> None:
        """Records that the pool has dropped all cached content."""

@final
class VllmPool:
    """The state of one vLLM block pool: references, keys, and the order in which free blocks are reused.

    ``kvpool.integrations.vllm`` implements vLLM's ``BlockPool`` with it. Blocks are passed as ``VllmBlock``.
    Digests, keys and ids have vLLM's formats. A block of another pool raises ``ArgumentTypeError``. Block 0
    is the null block, which is never free and never counted.

    A call takes 5 to 100 ns per block and key. A pool takes 300 bytes per block, and 80 more bytes per cached
    key.

    Args:
        num_blocks: The number of blocks of the pool, null block included. At least 1.
        caching: Whether blocks keep their hash when they are freed.
        policy: The policy that orders cached blocks for eviction, one of ``eviction_policies()``. ``"lru"``
            is the order that vLLM uses.
        journal: The journal that records the pool's calls. The journal contains complete keys, but no digests
            of the pool's state.
        retention: Whether the pool accepts hints, or the settings of pins and of tenants' limits.

    Raises:
        InvalidArgumentError: ``num_blocks`` is out of range, the policy is unknown, or the pool is too
            small for the pins.
        JournalFileError: The journal's file cannot be created.

    >>> pool = kvpool._core.vllm.VllmPool(4, True)
    >>> blocks, _ = pool.allocate(2)
    >>> pool.insert_hash(bytes(32) + bytes(4), blocks[0].block_id, 16)
    True
    >>> pool.free(reversed(blocks))
    >>> pool.order()  # block 2 carries no hash; block 1 can be hit until everything else is in use
    [2, 3, 1]
    >>> pool.find(bytes(32), [0]) == [blocks[0]]
    True
    """

    def __new__(
        cls,
        num_blocks: int,
        caching: bool,
        policy: str = "lru",
        journal: Journal | None = None,
        retention: RetentionConfig | bool | None = None,
    ) -> Self: ...
    def retain(self, block_ids: Iterable[int], retention: Retention) -> HintReport:
        """Sets a hint for how long to keep blocks, given by id.

        Returns the numbers of blocks for each outcome.
        """
    def assign_tenant(self, block_ids: Iterable[int], tenant: int) -> None:
        """Assigns blocks, given by id, to a tenant. They count towards its limits while they are cached."""
    def signal(
        self, block_ids: Iterable[int], finish_reason: str | None = None, output_tokens: int | None = None
    ) -> None:
        """Records how a request ended, as a hint to the policy. The caller then releases its blocks."""
    @property
    def wants_signals(self) -> bool:
        """Whether the eviction policy considers how requests ended."""
    def advance_time(self, now: float) -> int:
        """Sets the time, in seconds of the caller's clock. Returns the number of retentions that expire."""
    def retention_stats(self) -> RetentionStats | None:
        """Returns the numbers of blocks by kind of hint, or None without the setting ``retention``."""
    def journal_stats(self) -> JournalStats | None:
        """Returns the statistics of the journal, or None if there is no journal."""
    def journal_image(self) -> bytes | None:
        """Writes the collected records to the journal's file. For a ring, returns its bytes, else None."""
    def bind(self, owner: object) -> None:
        """Sets the object that the attribute ``pool`` of all blocks returns. A second call has no effect.

        The pool keeps only a weak reference to the object.
        """
    @property
    def blocks(self) -> list[VllmBlock]:
        """The list of all blocks, in the order of their ids. Each access returns the same list object."""
    @property
    def num_free(self) -> int:
        """The number of blocks that can be allocated, cached blocks included."""
    def set_num_free(self, count: int) -> None:
        """Sets the number of blocks that count as free. The queue does not change.

        Allocations and :attr:`num_free` use this number. Later calls that change the queue change the number
        by the same amount, but not below 0. To count all blocks again, set it to the length of the queue.
        O(1).

        Raises:
            InvalidArgumentError: ``count`` is negative, or above the length of the queue.
        """
    def owns(self, block: object) -> bool:
        """Returns whether an object is a ``VllmBlock`` of this pool."""
    @overload
    def allocate(
        self, n: int, observed: Literal[False] = False, feed: VllmFeed | None = None
    ) -> tuple[list[VllmBlock], None]:
        """Allocates the next free blocks, each with one reference, and evicts their keys.

        A feed is notified of the evicted keys. Returns the blocks, and None. If ``observed``, returns the
        evicted keys instead of None, in order. Each key comes with a bool, which is True if no other block is
        cached under the key. O(n).

        Raises:
            InvalidArgumentError: Fewer blocks are free.
        """
    @overload
    def allocate(
        self, n: int, observed: Literal[True], feed: VllmFeed | None = None
    ) -> tuple[list[VllmBlock], list[tuple[bytes, bool]]]: ...
    def claim(self, blocks: Iterable[VllmBlock]) -> list[tuple[bytes, bool]]:
        """Adds one reference to blocks that :meth:`queue_pop` removed, and evicts their keys.

        The two calls together have the effect of :meth:`allocate`. Returns the evicted keys as ``allocate``
        does. O(blocks).
        """
    def touch(self, blocks: Iterable[VllmBlock]) -> None:
        """Adds one reference to each block. Free blocks leave the queue.

        O(blocks).
        """
    def free(self, blocks: Iterable[Any]) -> list[Any] | None:
        """Releases one reference to each block. Returns the blocks that belong to other pools, or None.

        Blocks without further references become free in the order given. Blocks without a hash are reused
        before all other blocks, in the order given. Blocks with a hash are reused last. O(blocks).

        Raises:
            InvalidBlockError: A block has no references.
        """
    def unpin(self, blocks: Iterable[VllmBlock]) -> None:
        """Releases one reference to each block. Blocks without further references are reused last.

        Blocks without a hash are also reused last. O(blocks) if the number of blocks is small.

        Raises:
            InvalidBlockError: A block has no references, or is the null block.
        """
    def find(self, digest: bytes, groups: Sequence[int]) -> list[VllmBlock] | None:
        """Returns one block per group: the block that was cached first under a digest.

        Returns None if one of the groups has no such block. O(groups).

        Raises:
            InvalidArgumentError: The digest has more than 35 bytes.
        """
    def find_run(
        self, hashes: Sequence[bytes], max_blocks: int, groups: Sequence[int], scale: int = 1
    ) -> tuple[list[VllmBlock], ...]:
        """Returns the longest run of cached blocks from the first block of a request.

        The result has one list per group. O(blocks found * groups).

        Args:
            hashes: The digests of a request. Each block has ``scale`` digests, and the last of these
                identifies the block.
            max_blocks: The largest number of blocks to return. The number of digests also limits the result.
            groups: The groups. A position counts as cached if all of these groups have a block for it.
            scale: The number of digests per block, at least 1.

        Raises:
            InvalidArgumentError: A digest has more than 35 bytes.
        """
    def find_window(
        self,
        hashes: Sequence[bytes],
        max_blocks: int,
        groups: Sequence[int],
        need: int,
        block_size: int,
        alignment: int,
        shift: int,
        scale: int = 1,
    ) -> tuple[tuple[list[VllmBlock], ...], bool]:
        """Returns the last run of consecutive cached blocks that is long enough for a sliding window.

        The result has one list per group. Each list has null blocks in all positions before the run. If no
        run has ``need`` blocks, the call returns the run that begins at the first block, of any length. The
        second item of the result is whether the run has ``need`` blocks. O(blocks), or one lookup per window
        if nothing is cached.

        Args:
            hashes: The digests, as in ``find_run``. ``max_blocks`` blocks must have digests.
            max_blocks: The number of blocks to search.
            groups: The groups, as in ``find_run``.
            need: The number of blocks that a run must have.
            block_size: The number of tokens per block.
            alignment: A number of tokens at whose multiples hits end. If it is not ``block_size``, ``(end -
                shift) * block_size`` must be a multiple of it, where ``end`` is the position after the run.
            shift: The number of blocks that are dropped from the end of a hit.
            scale: The number of digests per block, as in ``find_run``.

        Raises:
            InvalidArgumentError: A digest has more than 35 bytes.
        """
    def cache_full(
        self,
        blocks: Sequence[object],
        hashes: Sequence[bytes],
        first: int,
        end: int,
        block_size: int,
        group: int,
        mask: Sequence[bool] | None = None,
        scale: int = 1,
        observed: bool = False,
        feed: VllmFeed | None = None,
        request: Any | None = None,
    ) -> tuple[list[tuple[bytes, bool]], list[bool | None]] | None:
        """Caches the full blocks from ``first`` to ``end`` of a request's table.

        Null blocks are skipped. If a block is already cached under keys of fewer tokens, these keys are
        evicted. O(end - first).

        Args:
            blocks: The table.
            hashes: The digests, as in ``find_run``.
            first: The position of the first block to cache.
            end: The position after the last block to cache.
            block_size: The number of tokens per block.
            group: The KV-cache group.
            mask: For each of these blocks, whether to cache it. By default, all blocks are cached.
            scale: The number of digests per block, as in ``find_run``.
            observed: Whether to return which keys are new.
            feed: A feed that is notified of the evicted and the new keys. With a feed, both returned lists
                are empty, and ``request`` is required.
            request: The request whose blocks are cached.

        Returns:
            The evicted keys as ``allocate`` returns them, and a list that is empty unless ``observed``.
                The list has an item per block: whether the key is new to the index, or None for a
                skipped block. If a block is not of this pool, the call caches nothing and returns None.

        Raises:
            InvalidBlockError: A block is already cached for this number of tokens, or for more.
            InvalidArgumentError: A digest has more than 35 bytes.
        """
    def insert_hash(
        self,
        key: bytes,
        block: int,
        num_tokens: int | None = None,
        depth: int = 0,
        parent: bytes | None = None,
    ) -> bool:
        """Caches a block under a key. Returns whether the key is new to the index.

        If the block has no hash, the key becomes its hash. ``num_tokens`` is the number of tokens of
        the prefix of the key. ``depth`` is the position of the block in its table, and ``parent`` is
        the key of the block before it. O(1).

        Raises:
            InvalidArgumentError: The key has more than 39 bytes.
        """
    def chain_group(self, group: int) -> None:
        """Declares that a block of this group is useful only with the block before it, as in full attention.

        If the pool keeps a history, a block that is cached later is evicted only after the cached blocks that
        continue its prefix. O(1).
        """
    @property
    def keeps_history(self) -> bool:
        """Whether the order of reuse depends on the contents and requests of blocks.

        For ``lru`` it does not.
        """
    def remove_hashes(self, block: int) -> list[tuple[bytes, bool]]:
        """Removes all keys from a block. Returns them as ``allocate`` does, with the block's hash first.

        O(keys).
        """
    def move_hashes(self, from_block: int, to_block: int) -> None:
        """Moves all keys of one block to another block, which must have none.

        O(keys).

        Raises:
            InvalidBlockError: ``to_block`` has a hash, or an id is unknown.
        """
    def evict(self, block: int, reuse_first: bool) -> list[tuple[bytes, bool]]:
        """Removes all keys from a block, in use or not, and returns them as ``allocate`` does.

        With ``reuse_first``, a free block that had keys is allocated next. O(keys).

        Raises:
            InvalidBlockError: The id is unknown.
        """
    def reset(self) -> bool:
        """Drops all cached content. If a block is in use, changes nothing and returns False.

        The order of reuse does not change. O(blocks).
        """
    def peek(self, n: int) -> list[VllmBlock]:
        """Returns up to ``n`` of the next free blocks without allocating them.

        O(n), or O(free blocks) if some of them are cached.
        """
    def queue_pop(self, n: int) -> list[VllmBlock]:
        """Removes up to ``n`` of the next blocks from the queue, and changes nothing else.

        O(n).
        """
    def queue_remove(self, block: int) -> bool:
        """Removes a block from the queue, and returns whether it was in the queue.

        O(1).
        """
    def queue_push(self, blocks: Iterable[VllmBlock], front: bool) -> None:
        """Adds blocks to the front or the back of the queue, in this order. They must not be in the queue.

        O(blocks).
        """
    def order(self) -> list[int]:
        """Returns the ids of the free blocks in the order of reuse.

        O(free blocks).
        """
    def copies(self, key: bytes) -> list[int]:
        """Returns the ids of the blocks that are cached under a key, the oldest first.

        O(copies).
        """
    def was_shared(self, key: bytes) -> bool:
        """Returns whether several blocks were cached under a key at one time.

        Only the time since the key last had no block counts.

        O(1).
        """
    def keys(self) -> list[bytes]:
        """Returns every key of the index, in no particular order.

        O(keys).
        """
    def num_keys(self) -> int:
        """Returns the number of keys in the index.

        O(1).
        """
    def index_insert(self, key: bytes, block: int) -> None:
        """Adds a block to the entry of a key in the index. The keys of the block do not change.

        O(copies).

        Raises:
            InvalidArgumentError: The key has more than 39 bytes.
        """
    def index_remove(self, key: bytes, block: int) -> bool:
        """Removes a block from the entry of a key in the index, and returns whether the entry had the block.

        The keys of the block do not change. O(copies).
        """
    def index_clear(self) -> None:
        """Removes all keys from the index. The keys of the blocks do not change.

        O(keys).
        """
    def further_keys(self, block: int) -> list[bytes]:
        """Returns the keys of a block except its hash, in the order in which they were added.

        O(keys of the block).
        """
    def blocks_with_further_keys(self) -> list[int]:
        """Returns the ids of the blocks that have keys besides their hash, in ascending order.

        O(n log n) for n such blocks.
        """
    def num_evictable(self, blocks: Iterable[VllmBlock]) -> int:
        """Returns how many of the blocks are free, so that ``touch`` would remove them from the queue.

        O(blocks).
        """
    def check_invariants(self) -> None:
        """Recomputes the state from scratch, and compares it with the stored state.

        O(blocks + keys), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """

@final
class VllmHasher:
    """Computes the missing block hashes of a vLLM request, equal to vLLM's bit for bit.

    ``hasher(request)`` returns them as a list of ``bytes``. It reads ``block_hashes``,
    ``_all_token_ids`` (a list), ``mm_features``, ``lora_request``, ``prompt_embeds`` and
    ``cache_salt``. For blocks with extra keys, or with tokens that are not 32-bit numbers, it calls
    ``utils.generate_block_hash_extra_keys`` and ``utils.hash_block_tokens``.

    A call takes 80 ns if no block has become full, otherwise 30 to 200 ns per block of 16 tokens. From
    1,024 new tokens on, other threads run meanwhile. A call holds the interpreter for at most 16,384 tokens
    at a time, except for blocks that it passes to ``utils``.

    Args:
        algorithm: One of vLLM's algorithms in ``hash_algorithms()``: ``"vllm-sha256"``,
            ``"vllm-sha256-cbor"``, ``"vllm-xxhash"`` or ``"vllm-xxhash-cbor"``.
        block_size: The number of tokens per block.
        utils: The module ``vllm.v1.core.kv_cache_utils``. Its ``NONE_HASH``, which is read at each
            call, is the parent of the first block.
        hash_fn: vLLM's hash function of that algorithm. It hashes the blocks that the core cannot
            encode.

    Raises:
        InvalidArgumentError: The algorithm does not exist.
        HashingError: The algorithm is not one of vLLM's, or the block size is 0.

    >>> import hashlib, pickle, types
    >>> utils = types.ModuleType("kv_cache_utils")
    >>> utils.NONE_HASH = bytes(32)
    >>> request = types.SimpleNamespace(
    ...     block_hashes=[], _all_token_ids=[1, 2, 3], mm_features=[], lora_request=None, prompt_embeds=None,
    ...     cache_salt=None,
    ... )
    >>> hasher = kvpool._core.vllm.VllmHasher("vllm-sha256", 2, utils, None)
    >>> hasher(request) == [hashlib.sha256(pickle.dumps((bytes(32), (1, 2), None), 5)).digest()]
    True
    """

    def __new__(cls, algorithm: str, block_size: int, utils: ModuleType, hash_fn: Any) -> Self: ...
    def __call__(self, request: Any) -> list[bytes]:
        """Computes the hashes that are missing at the end of ``request.block_hashes``."""

@final
class VllmGroups:
    """The calls that vLLM's scheduler makes for every request and step, for any KV-cache groups.

    The class keeps no requests. Tables and counts are vLLM's own lists and dictionaries, group by group. A
    step in which a group needs no new block takes about 0.1 us for this group.

    The class passes unusual calls to ``fallback`` before it changes anything. Unusual calls are those with
    external or encoder tokens, with a hit inside a block, with hits of a running request, with a shared or
    exported state, and with nothing to compute.

    A group is a dict with the keys:

    - ``kind``: ``"full"``, ``"sliding"``, ``"chunked"`` or ``"state"``;
    - ``reads``: the number of tokens of the window or chunk;
    - ``block_size``: tokens per block;
    - ``scale``: digests per block;
    - ``group``: the number of the group, which is also its position;
    - ``retained``: the number of tokens before the window whose blocks are kept;
    - ``more_slots``: the number of token slots that get blocks in addition to those of a step;
    - ``most``: the largest number of blocks of a whole request, or None;
    - ``tables``: a dict of request id to the list of its ``VllmBlock``;
    - ``num_cached``: a dict of request id to the number of its cached blocks;
    - ``manager``: vLLM's manager of the group;
    - ``zeroed``: whether the manager's ``new_block_ids`` gets the ids of new blocks;
    - ``cached``: whether full blocks of the group are cached;
    - ``counts``: whether ``cached_tokens`` includes the group;
    - ``drops``: whether speculative heads compute the end of a hit again;
    - ``alignment``: hits end at multiples of this number of tokens;
    - ``ends``: cached content ends at multiples of this number of tokens, or None for a single group;
    - ``prompt_tail``: None, or a number of tokens. The group then also caches the block in which the
      prompt without this number of last tokens ends, if the prompt has a digest there;
    - ``this_step``: for a group of states, the set of keys that were cached in this step of the engine.
      Otherwise None;
    - ``states``: for a group of aligned recurrent states, a dict. Otherwise None. In the dict,
      ``speculative`` is the number of speculative blocks. ``junctions`` is whether the group also caches
      states at junctions, where prompts diverge, and ``drops`` whether it drops the end of a hit.
      ``lookahead`` is the number of tokens after a block that its digest covers. ``allocated`` (a set),
      ``retired``, ``last``, ``partial``, ``checkpoints`` and ``tails`` (dicts) are the records of vLLM's
      manager by request id.

    Args:
        core: The pool.
        groups: The groups, in vLLM's order.
        max_model_len: The largest number of tokens of a request.
        recomputed: The number of last tokens that are not cached, because a later step may compute them
            again.
        watermark: The number of blocks that must stay free when a waiting request is admitted.
        waiting: The values of ``request.status`` of a waiting request, to which ``watermark`` applies.
        blocks_class: A function that is called with a tuple of one list of blocks per group. It returns the
            object that calls return.
        empty: The object that calls return if there are no blocks.
        fallback: vLLM's ``allocate_slots``, which is called for unusual calls. It gets all arguments by
            position.
        coordinator: vLLM's coordinator. Its ``retention_interval`` is the number of tokens between the
            windows and states that remain cached.
        scheduler_block: The number of tokens of a block of the scheduler.
        drops: Whether some group drops the end of a hit, because speculative heads compute it again.
        by_series_33: Whether vLLM is 0.33 or later. These versions keep more content at junctions, and report
            states less often.
        lookup: The number of tokens at whose multiples hits end, and the groups that are looked up together.
            Each entry has the positions of its groups, whether they drop the end of a hit, and the number of
            tokens after the hit that are looked up because of this. None disables lookups.
        on_removed: A function that is called with evicted keys, in the form in which ``VllmPool.allocate``
            returns them. Or a feed that is notified of these keys.
        on_cached: vLLM's ``BlockPool.cache_full_blocks``, which is called to cache blocks. Or a feed that is
            notified of cached keys.
        metered: A pool that reports every block to a collector of metrics. Its methods ``get_new_blocks`` and
            ``touch`` are called, because they make these reports.

    Raises:
        InvalidArgumentError: The kind is unknown. Or a size is 0, or a block size is not a multiple of
            the scale. Or ``lookup`` contains groups that do not exist.

    >>> from types import SimpleNamespace
    >>> of = {"retained": 0, "more_slots": 0, "most": None, "scale": 1, "cached": True, "counts": True,
    ...     "zeroed": False, "manager": None, "ends": 2, "alignment": 2, "drops": False, "prompt_tail": None,
    ...     "this_step": None, "states": None}
    >>> groups = [
    ...     {"kind": kind, "block_size": 2, "reads": 3, "group": at, "tables": {}, "num_cached": {}, **of}
    ...     for at, kind in enumerate(["full", "sliding"])
    ... ]
    >>> calls = kvpool._core.vllm.VllmGroups(
    ...     kvpool._core.vllm.VllmPool(16, True), groups, max_model_len=32, recomputed=0, watermark=0,
    ...     waiting=[], blocks_class=tuple, empty=None, fallback=None,
    ...     coordinator=SimpleNamespace(retention_interval=None),
    ...     scheduler_block=2, lookup=(2, [([0], False, 2), ([1], False, 2)]),
    ... )
    >>> request = SimpleNamespace(
    ...     request_id="a", num_computed_tokens=0, num_in_flight_tokens=0, _all_token_ids=[1] * 6, status=0,
    ...     block_hashes=[bytes([n]) * 32 for n in range(3)], num_prompt_tokens=6, shared_prefix_boundary=0,
    ... )
    >>> [[block.block_id for block in blocks] for blocks in calls.allocate_slots(request, 6)]
    [[1, 2, 3], [4, 5, 6]]
    >>> blocks, tokens, _ = calls.find_longest_cache_hit(request.block_hashes, 5)
    >>> [[block.block_id for block in group] for group in blocks], tokens
    ([[1, 2], [0, 5]], 4)
    >>> request.num_computed_tokens = 6  # the next token reads two tokens of the window: one block
    >>> [[block.block_id for block in blocks] for blocks in calls.allocate_slots(request, 1)]
    [[7], [8]]
    >>> [block.block_id for block in groups[1]["tables"]["a"]]
    [0, 0, 6, 8]
    >>> calls.free("a")
    True
    """

    def __new__(
        cls,
        core: VllmPool,
        groups: Sequence[dict[str, Any]],
        *,
        max_model_len: int,
        recomputed: int,
        watermark: int,
        waiting: Sequence[int],
        blocks_class: Callable[[tuple[list[VllmBlock], ...]], Any],
        empty: Any,
        fallback: Any,
        coordinator: Any,
        scheduler_block: int,
        drops: bool = False,
        by_series_33: bool = False,
        lookup: tuple[int, Sequence[tuple[Sequence[int], bool, int]]] | None = None,
        on_removed: Callable[[list[tuple[bytes, bool]]], object] | VllmFeed | None = None,
        on_cached: Callable[..., object] | VllmFeed | None = None,
        metered: Any | None = None,
    ) -> Self: ...
    def find_longest_cache_hit(
        self, block_hashes: Sequence[bytes], max_cache_hit_length: int
    ) -> tuple[tuple[list[VllmBlock], ...], int, int]:
        """Returns the cached blocks of a request by group, and the number of their tokens.

        The third item is the number of additional tokens that the group with the longest hit has. The blocks
        are those that vLLM's coordinator would return.

        The time is proportional to the number of new blocks of full attention since the last hit, plus the
        number of blocks that windows, chunks and states look up.

        Raises:
            InvalidArgumentError: A digest has more than 35 bytes, or ``lookup`` is None.
        """
    def find_longest_cache_hit_per_group(
        self, block_hashes: Sequence[bytes], max_cache_hit_length: int
    ) -> tuple[tuple[list[VllmBlock], ...], tuple[int, ...]]:
        """Returns the cached blocks of a request in each group, regardless of the other groups.

        Also returns the number of their tokens for each group. Costs and errors are those of
        ``find_longest_cache_hit``.
        """
    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
        skip_zeroing_group_ids: Any | None = None,
    ) -> Any:
        """Allocates the next blocks of a request, and caches its full blocks.

        Works like vLLM's ``KVCacheManager.allocate_slots``. Returns None if too few blocks are free.
        Blocks before a window are released first, even if too few blocks are free. O(groups + new
        blocks + hits).

        Raises:
            InvalidBlockError: A block to cache is already cached.
        """
    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        """Caches the blocks of a request that this number of computed tokens fills.

        O(groups + new full blocks).

        Raises:
            InvalidBlockError: A block to cache is already cached.
        """
    def free(self, id: object) -> bool:  # noqa: A002
        """Frees the blocks of a request, group by group, the last block first.

        Returns whether the blocks were freed. If a block is not of this pool, changes nothing and
        returns False, because vLLM has to free the blocks. O(blocks).

        Raises:
            InvalidBlockError: A block has no references.
        """
    def cached_tokens(self, id: object) -> int:  # noqa: A002
        """Returns the number of cached tokens of a request in the group that has the fewest.

        O(blocks).
        """

def vllm_block_ids(groups: tuple[Iterable[Any], ...]) -> tuple[list[int], ...]:
    """Returns the ids of the blocks of each group.

    Has the effect of vLLM's ``KVCacheBlocks.get_block_ids``. Blocks are ``VllmBlock``, or have a
    ``block_id``. O(blocks).
    """
