"""The KV cache of one model: its layers by what they keep, and the sizes that follow."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from kvpool.models.groups import KvGroups, group_layers
from kvpool.models.layers import Layers, attention, require_count

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DTYPE_BYTES", "KvShape"]

#: Bytes of one element, by the names that engines and checkpoints use.
DTYPE_BYTES: Final[dict[str, int]] = {
    "fp32": 4,
    "float32": 4,
    "bf16": 2,
    "bfloat16": 2,
    "fp16": 2,
    "float16": 2,
    "half": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int8": 1,
}


@dataclasses.dataclass(frozen=True, slots=True)
class KvShape:
    """What a request leaves in the KV cache of a model.

    >>> KvShape.of_heads("mine", layers=2, kv_heads=4, head_dim=64).bytes_per_token
    2048
    >>> KvShape.of_heads("mine", layers=2, kv_heads=0, head_dim=64)
    Traceback (most recent call last):
    ...
    ValueError: kv_heads is 0; allowed: a whole number, 1 or more
    """

    #: The model's name, as people write it.
    name: str
    #: Its layers, by what they keep. Layers that keep nothing are left out.
    layers: tuple[Layers, ...]
    #: Bytes of one element of keys, values and latents. States have dtypes of their own.
    dtype_bytes: int = 2

    def __post_init__(self) -> None:
        if not self.layers or not all(isinstance(kind, Layers) for kind in self.layers):
            raise ValueError(f"layers is {self.layers!r}; allowed: one Layers or more")
        require_count("dtype_bytes", self.dtype_bytes)

    @classmethod
    def of_heads(cls, name: str, layers: int, kv_heads: int, head_dim: int, dtype_bytes: int = 2) -> KvShape:
        """Make the shape of a model whose layers are all alike: full attention with so many KV heads.

        Raises:
            ValueError: a number that is no whole number of 1 or more.
        """
        require_count("layers", layers)
        return cls(name, (attention(layers, kv_heads, head_dim),), dtype_bytes)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token leaves in all layers that keep tokens, windows and chunks included.

        >>> from kvpool.models import kv_shape
        >>> kv_shape("DeepSeek-V3").bytes_per_token  # 61 layers, 512 + 64 elements of 2 bytes
        70272
        """
        return sum(kind.count * kind.token_bytes(self.dtype_bytes) for kind in self.layers)

    @property
    def bytes_per_state(self) -> int:
        """Bytes of the states of all recurrent layers: what a request keeps, and each checkpoint again.

        >>> from kvpool.models import kv_shape
        >>> kv_shape("Llama-3.1-8B").bytes_per_state
        0
        """
        return sum(kind.count * kind.state_bytes for kind in self.layers)

    def groups(self, block_size: int = 16) -> KvGroups:
        """Make the groups that share a pool, with blocks of ``block_size`` tokens or more.

        Raises:
            ValueError: ``block_size`` is no whole number of 1 or more.
        """
        return group_layers(self.layers, self.dtype_bytes, block_size)

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of one block of the pool that the groups share.

        >>> from kvpool.models import kv_shape
        >>> kv_shape("Llama-3.1-8B").bytes_per_block(16) // 2**20
        2

        Raises:
            ValueError: ``block_size`` is no whole number of 1 or more.
        """
        return self.groups(block_size).block_bytes

    def blocks_in(self, gib: float, block_size: int) -> int:
        """How many of these blocks fit into ``gib`` GiB (2**30 bytes each).

        >>> from kvpool.models import kv_shape
        >>> kv_shape("Llama-3.1-70B").blocks_in(gib=0.5, block_size=16)
        102

        Raises:
            ValueError: ``gib`` is negative or not finite, or ``block_size`` no whole number of 1 or more.
        """
        return self.groups(block_size).blocks_in(gib)

    def in_words(self) -> str:
        """What the layers are, kind by kind.

        >>> from kvpool.models import kv_shape
        >>> kv_shape("Gemma-3-27B").in_words()
        '10 full, 52 sliding 1,024'
        """
        return _in_words(self.layers)


def _in_words(layers: Sequence[Layers]) -> str:
    spans = [f" {kind.span:,}" if kind.span else "" for kind in layers]
    return ", ".join(f"{kind.count} {kind.kind}{span}" for kind, span in zip(layers, spans, strict=True))
