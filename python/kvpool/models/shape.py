"""The shape of a model's KV cache: how much each kind of layer keeps, and the sizes that follow from it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kvpool.models.dtypes import DTYPE_BYTES, dtype_name, token_bytes
from kvpool.models.groups import KvGroups, group_layers
from kvpool.models.layers import Layers, attention, require_count

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["KvShape"]


@dataclasses.dataclass(frozen=True, slots=True)
class KvShape:
    """The layers of a model that keep KV, and the sizes of its KV cache.

    >>> KvShape.of_heads("mine", layers=2, kv_heads=4, head_dim=64).bytes_per_token
    2048
    >>> KvShape.of_heads("mine", layers=2, kv_heads=0, head_dim=64)
    Traceback (most recent call last):
    ...
    ValueError: kv_heads is 0; allowed: a whole number, 1 or more
    """

    name: str
    #: The layers, one entry for each kind and amount of KV. Layers that keep no KV are left out.
    layers: tuple[Layers, ...]
    #: The format of keys, values and latents, a key of ``DTYPE_BYTES``. States have their own dtypes.
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        if not self.layers or not all(isinstance(kind, Layers) for kind in self.layers):
            raise ValueError(f"layers is {self.layers!r}; allowed: one Layers or more")
        dtype_name(self.dtype)
        # Raises if the layers cannot be stored in the given format.
        self.token_bytes()

    @classmethod
    def of_heads(cls, name: str, layers: int, kv_heads: int, head_dim: int, dtype: str = "bf16") -> KvShape:
        """Make the shape of a model in which all layers have full attention with the same ``kv_heads``.

        Raises:
            ValueError: A number is not a whole number of 1 or more.
        """
        require_count("layers", layers)
        return cls(name, (attention(layers, kv_heads, head_dim),), dtype)

    @property
    def dtype_bytes(self) -> float:
        """Bytes of one element of keys, values and latents, without scales."""
        return DTYPE_BYTES[dtype_name(self.dtype)]

    def token_bytes(self) -> list[int]:
        """Return, by entry of ``layers``, the bytes of one token in one layer.

        Scales are included. The result for states is 0.

        >>> from kvpool.models import kv_shape
        >>> kv_shape("DeepSeek-V3.2", dtype="fp8_ds_mla").token_bytes()  # 656, and 132 of the index
        [788]
        """
        sparse = any(kind.index_bytes for kind in self.layers)
        return [token_bytes(kind, dtype_name(self.dtype), sparse=sparse) for kind in self.layers]

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token, summed over all layers that keep tokens.

        Layers with windows and chunks are included.

        >>> from kvpool.models import kv_shape
        >>> kv_shape("DeepSeek-V3").bytes_per_token  # 61 layers, 512 + 64 elements of 2 bytes
        70272
        """
        return sum(kind.count * one for kind, one in zip(self.layers, self.token_bytes(), strict=True))

    @property
    def bytes_per_state(self) -> int:
        """Bytes of the states of one request, summed over all recurrent layers.

        Each checkpoint takes the same number of bytes.

        >>> from kvpool.models import kv_shape
        >>> kv_shape("Llama-3.1-8B").bytes_per_state
        0
        """
        return sum(kind.count * kind.state_bytes for kind in self.layers)

    def with_dtype(self, dtype: str) -> KvShape:
        """Return the same shape with keys, values and latents of another format.

        >>> from kvpool.models import kv_shape
        >>> kv_shape("Llama-3.1-8B").with_dtype("nvfp4").bytes_per_token  # 4 bits, and a byte per 16 elements
        36864

        Raises:
            ValueError: The format is unknown, or does not exist for these layers.
        """
        return dataclasses.replace(self, dtype=dtype_name(dtype))

    def groups(self, block_size: int = 16) -> KvGroups:
        """Form the groups that share a pool, with blocks of ``block_size`` tokens or more.

        Raises:
            ValueError: ``block_size`` is not a whole number of 1 or more.
        """
        return group_layers(self.layers, self.token_bytes(), block_size)

    def bytes_per_block(self, block_size: int) -> int:
        """Return the bytes of one block of the pool that the groups share.

        >>> from kvpool.models import kv_shape
        >>> kv_shape("Llama-3.1-8B").bytes_per_block(16) // 2**20
        2

        Raises:
            ValueError: ``block_size`` is not a whole number of 1 or more.
        """
        return self.groups(block_size).block_bytes

    def blocks_in(self, gib: float, block_size: int) -> int:
        """Return the number of blocks that fit into ``gib`` GiB (2**30 bytes each).

        >>> from kvpool.models import kv_shape
        >>> kv_shape("Llama-3.1-70B").blocks_in(gib=0.5, block_size=16)
        102

        Raises:
            ValueError: ``gib`` is negative or not finite, or ``block_size`` is not a whole number of 1
                or more.
        """
        return self.groups(block_size).blocks_in(gib)

    def in_words(self) -> str:
        """Return a description of the layers, kind by kind.

        >>> from kvpool.models import kv_shape
        >>> kv_shape("Gemma-3-27B").in_words()
        '10 full, 52 sliding 1,024'
        """
        return _in_words(self.layers)


def _in_words(layers: Sequence[Layers]) -> str:
    spans = [f" {kind.span:,}" if kind.span else "" for kind in layers]
    return ", ".join(f"{kind.count} {kind.kind}{span}" for kind, span in zip(layers, spans, strict=True))
