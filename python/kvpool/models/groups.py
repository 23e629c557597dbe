"""KV-cache groups: how a model's layers share one pool of blocks of equal size.

Layers that keep the same KV are divided into groups with equal numbers of layers. One block of the pool
then provides a page of equal size to each layer of any group. In the following, b is the number of
tokens of a block. A step computes at most c tokens of a request (``chunk``, the largest chunk of a
prompt). A request of n tokens then needs at most this number of blocks:

- for each group of full attention, ceil(n / b).
- for each group with windows, the same number, but at most ceil((window + c - 2) / b) + 1. While a step
  computes c tokens, the block table holds these tokens and the window of the first of them.
- for each group with chunked attention, the same number, but at most ceil((span + c - 1) / b), and one
  more if the chunks of the attention do not begin at block boundaries. The span is the length of such a
  chunk.
- for each group of states, 1, and 1 more for each checkpoint that is kept for later requests.

These numbers are enough for any order of steps: prompts in chunks of c tokens or fewer, decoding, and
hits of any length.

**How groups are formed**, as in vLLM (0.33, ``v1/core/kv_cache_utils.py``; the description is ours):

1. If all layers are of one kind, or all have full attention, they form one group.
2. Otherwise, each group has as many layers as the rarest kind. If the most frequent kind has less than
   one and a half times as many layers, each group has the number of the most frequent kind instead. The
   last groups of a kind are filled up with padding: layers that do not exist.
3. A page has the size of a block of the layers that keep the most bytes per token. Layers that keep
   half as many bytes per token have blocks of twice as many tokens, and so on. If the sizes do not
   divide evenly, the rest of a page is padding.
4. A state also takes one page. Blocks are made longer, in steps of the given block size, until a page
   can hold a state. The rest of the page is padding. For this reason, a block of Qwen3-Next has 544
   tokens instead of 16.

This module owns this arithmetic. Each question costs O(groups).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

from kvpool.models.layers import Kind, require_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvpool.models.layers import Layers

__all__ = ["DEFAULT_CHUNK", "KvGroup", "KvGroups", "group_layers"]

_GIB: Final = 1 << 30

#: The number of prompt tokens that a step computes, if the caller gives none. Many engines have this
#: default.
DEFAULT_CHUNK: Final = 8192

#: If the most frequent kind of layer has fewer layers than this number times those of the rarest kind,
#: each group has as many layers as the most frequent kind.
_CLOSE: Final = 1.5


@dataclasses.dataclass(frozen=True, slots=True)
class KvGroup:
    """One group: layers that keep the same KV, with one block table per request."""

    kind: Kind
    #: Number of layers of the model in the group. Padding layers are not counted.
    layers: int
    #: Tokens per block. For a state, tokens from one possible checkpoint to the next.
    block_tokens: int
    #: Number of bytes of a block that contain data, not padding.
    used_bytes: int
    #: Tokens of the window or chunk; 0 for the other kinds.
    span: int = 0
    #: A readable description of the KV that a layer keeps.
    what: str = ""

    def blocks(self, tokens: int, chunk: int = DEFAULT_CHUNK) -> int:
        """Return the largest number of blocks that a request of ``tokens`` tokens holds at any time.

        A step computes at most ``chunk`` tokens of the request.

        >>> window = KvGroup("sliding", 10, 16, 1310720, span=1024)
        >>> window.blocks(32_000), window.blocks(32_000, chunk=1)  # in prefill, and in decode
        (577, 65)
        """
        filled = -(-tokens // self.block_tokens)
        if self.kind == "sliding":
            # The worst case is a step for which the first token of the window is the last token of a
            # block.
            return min(filled, -(-(self.span + chunk - 2) // self.block_tokens) + 1)
        if self.kind == "chunked":
            return max((self._blocks_behind(at, tokens, chunk) for at in self._starts(tokens)), default=0)
        return min(filled, 1) if self.kind == "state" else filled

    def _starts(self, tokens: int) -> range:
        """Return the first tokens of the attention chunks, until their positions in blocks repeat."""
        return range(0, min(tokens, math.lcm(self.span, self.block_tokens)), self.span)

    def _blocks_behind(self, start: int, tokens: int, chunk: int) -> int:
        """Count the blocks from ``start``, the first token of an attention chunk, to the end of a step.

        The step begins at the last token of that attention chunk.
        """
        end = min(start + self.span - 1 + chunk, tokens)
        return -(-end // self.block_tokens) - start // self.block_tokens

    def in_words(self) -> str:
        """Return the kind of the group, and the span of its window or chunk, as text.

        >>> KvGroup("sliding", 10, 16, 1310720, span=1024).in_words()
        'sliding 1,024'
        """
        return f"{self.kind} {self.span:,}" if self.span else self.kind


@dataclasses.dataclass(frozen=True, slots=True)
class KvGroups:
    """All groups of a model, and the bytes of the blocks that they share."""

    groups: tuple[KvGroup, ...]
    #: Bytes of one block, which is the same for all groups.
    block_bytes: int

    @property
    def block_tokens(self) -> int:
        """Number of tokens of the shortest block among the groups."""
        return min(group.block_tokens for group in self.groups)

    @property
    def lengthened(self) -> bool:
        """Whether the groups have blocks of different lengths, or some groups hold states."""
        return len({group.block_tokens for group in self.groups}) > 1 or any(
            g.kind == "state" for g in self.groups
        )

    def blocks_in(self, gib: float) -> int:
        """Return the number of blocks that fit into ``gib`` GiB (2**30 bytes each)."""
        if not isinstance(gib, (int, float)) or isinstance(gib, bool) or not math.isfinite(gib) or gib < 0:
            raise ValueError(f"gib is {gib!r}; allowed: a number, 0 or more")
        return int(gib * _GIB) // self.block_bytes

    def request_blocks(self, tokens: int, chunk: int = DEFAULT_CHUNK) -> list[int]:
        """Return the largest number of blocks that a request holds, by group.

        Args:
            tokens: Number of tokens of prompt and answer together, 0 or more.
            chunk: The largest number of tokens of a prompt that a step computes, 1 or more. Groups with
                windows hold the window and these tokens.
        """
        require_count("tokens", tokens, least=0)
        require_count("chunk", chunk)
        return [group.blocks(tokens, chunk) for group in self.groups]

    def request_bytes(self, tokens: int, chunk: int = DEFAULT_CHUNK) -> int:
        """Return the bytes of the blocks that a request holds at most, padding included."""
        return sum(self.request_blocks(tokens, chunk)) * self.block_bytes

    def requests_in(self, blocks: int, tokens: int, chunk: int = DEFAULT_CHUNK) -> int:
        """Return how many requests of ``tokens`` tokens fit into ``blocks`` blocks, if they share no blocks.

        At any time, one request computes its prompt in steps of ``chunk`` tokens, while the others
        decode.
        """
        require_count("tokens", tokens)
        computing, decoding = (sum(self.request_blocks(tokens, step)) for step in (chunk, 1))
        return 1 + (blocks - computing) // decoding if blocks >= computing else 0

    def longest_in(self, blocks: int, chunk: int = DEFAULT_CHUNK) -> int | None:
        """Return the length of the longest request that fits into ``blocks`` blocks.

        Returns ``None`` if any length fits, and ``0`` if no length does.

        Args:
            blocks: Number of blocks of the pool without the null block, 0 or more.
            chunk: See :meth:`request_blocks`. Smaller chunks leave room for longer requests.

        >>> from kvpool.models import kv_shape
        >>> groups = kv_shape("Gemma-3-27B").groups()
        >>> groups.longest_in(100)   # 7 groups, and no window is full
        224
        >>> groups.longest_in(9000), groups.longest_in(9000, chunk=512)
        (88608, 134688)
        """
        require_count("blocks", blocks, least=0)
        require_count("chunk", chunk)
        bounded = not any(group.kind == "full" for group in self.groups)
        if bounded and sum(self.request_blocks(1 << 62, chunk)) <= blocks:
            return None
        fits, fails = 0, (blocks + 1) * max(group.block_tokens for group in self.groups)
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if sum(self.request_blocks(middle, chunk)) <= blocks:
                fits = middle
            else:
                fails = middle
        return fits

    def padding(self, group: KvGroup) -> float:
        """Return the share of a group's blocks that holds no data, 0 to 1."""
        return 1 - group.used_bytes / self.block_bytes


def group_layers(kinds: Sequence[Layers], token_bytes: Sequence[int], block_size: int) -> KvGroups:
    """Form the groups of a model's layers.

    Args:
        kinds: The layers of the model, one entry for each kind and amount of KV.
        token_bytes: The bytes per token in one layer of each entry.
        block_size: The smallest number of tokens of a block. Longer blocks are multiples of it.
    """
    require_count("block_size", block_size)
    if len(kinds) == 1 or all(kind.kind == "full" for kind in kinds):
        return _one_group(kinds, token_bytes, block_size)
    most = max(token_bytes)
    state = max(kind.state_bytes for kind in kinds)
    steps = max(1, -(-state // (block_size * most))) if most else 1
    tokens = steps * block_size
    page = tokens * most if most else state
    rarest, commonest = min(kind.count for kind in kinds), max(kind.count for kind in kinds)
    size = commonest if commonest < rarest * _CLOSE else rarest
    groups: list[KvGroup] = []
    for kind, per_token in zip(kinds, token_bytes, strict=True):
        longer = most // per_token if per_token and most % per_token == 0 else 1
        layer = kind.state_bytes if kind.kind == "state" else per_token * tokens * longer
        number = -(-kind.count // size)
        for at in range(number):
            layers = len(range(at, kind.count, number))
            groups.append(KvGroup(kind.kind, layers, tokens * longer, layers * layer, kind.span, kind.what))
    return KvGroups(tuple(groups), size * page)


def _one_group(kinds: Sequence[Layers], token_bytes: Sequence[int], block_size: int) -> KvGroups:
    first = kinds[0]
    if first.kind == "state":
        used = sum(kind.count * kind.state_bytes for kind in kinds)
    else:
        used = sum(kind.count * one for kind, one in zip(kinds, token_bytes, strict=True)) * block_size
    layers, what = sum(kind.count for kind in kinds), ", ".join(kind.what for kind in kinds)
    return KvGroups((KvGroup(first.kind, layers, block_size, used, first.span, what),), used)
