"""The amount of KV that one layer keeps for a request, in elements and bytes.

This module owns :class:`Layers` and the arithmetic that computes it from a model's configuration: for
key and value heads, latents, and the states of recurrent layers. All figures are for one layer, summed
over all ranks.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final, Literal

__all__ = [
    "Kind",
    "Layers",
    "attention",
    "gated_delta_net",
    "gated_linear_recurrence",
    "kimi_delta_attention",
    "latent",
    "lightning_attention",
    "mamba1",
    "mamba2",
    "require_count",
    "short_convolution",
]

Kind = Literal["full", "sliding", "chunked", "state"]

#: In the index of sparse attention, this number of elements share one scale in the cache. The scale
#: takes ``_INDEX_SCALE_BYTES`` bytes.
_INDEX_GROUP: Final = 128
_INDEX_SCALE_BYTES: Final = 4


def require_count(field: str, value: object, *, least: int = 1) -> None:
    """Raise unless the value is a whole number of at least ``least``. Booleans are not accepted."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{field} is {value!r}; allowed: a whole number, {least} or more")


@dataclasses.dataclass(frozen=True, slots=True)
class Layers:
    """Layers of a model that keep the same kind and amount of KV.

    >>> attention(52, kv_heads=16, head_dim=128, window=1024).token_bytes(dtype_bytes=2)
    8192
    >>> Layers("state", 3, what="nothing")
    Traceback (most recent call last):
    ...
    ValueError: state_bytes is 0; allowed: a whole number, 1 or more
    """

    #: The tokens that a token attends to in these layers: all tokens before it, a window, a chunk, or
    #: none because the layer has a state.
    kind: Kind
    #: Number of layers.
    count: int
    #: Elements per token in one layer, in the cache's dtype.
    elements: int = 0
    #: Elements of a key and of a value of one head. For MLA, elements of the latent and of the
    #: position.
    dims: tuple[int, ...] = ()
    #: Whether these layers are multi-head latent attention.
    latent: bool = False
    #: Bytes per token of a sparse attention's index. They do not depend on the cache's dtype.
    index_bytes: int = 0
    #: Bytes of the state in one layer. Its dtype is the model's, not the cache's.
    state_bytes: int = 0
    #: Number of tokens of the window (the current token included) or of the chunk; 0 for the other
    #: kinds.
    span: int = 0
    #: A readable description of the KV that is kept.
    what: str = ""

    def __post_init__(self) -> None:
        if self.kind not in {"full", "sliding", "chunked", "state"}:
            raise ValueError(f"kind is {self.kind!r}; allowed: full, sliding, chunked, state")
        require_count("count", self.count)
        require_count("state_bytes" if self.kind == "state" else "elements", self._size())
        require_count("index_bytes", self.index_bytes, least=0)
        require_count("span", self.span, least=int(self.kind in {"sliding", "chunked"}))

    def _size(self) -> int:
        return self.state_bytes if self.kind == "state" else self.elements

    @property
    def vectors(self) -> int:
        """Number of vectors per token in one layer that can have a scale: a key and a value for each head.

        MLA has two such vectors.
        """
        return 2 if self.latent else 2 * self.elements // sum(self.dims) if self.dims else 0

    def token_bytes(self, dtype_bytes: float) -> int:
        """Return the bytes per token in one layer; 0 for states.

        An element takes ``dtype_bytes`` bytes. Scales are not included.
        """
        return math.ceil(self.elements * dtype_bytes) + self.index_bytes


def attention(
    count: int, kv_heads: int, head_dim: int, *, value_dim: int | None = None, window: int = 0, chunk: int = 0
) -> Layers:
    """Make layers that keep a key and a value vector per KV head and token.

    ``value_dim`` is the length of a value, if it differs from a key's. ``window`` and ``chunk`` limit
    the tokens that a token reads.
    """
    require_count("kv_heads", kv_heads)
    require_count("head_dim", head_dim)
    values = head_dim if value_dim is None else value_dim
    require_count("value_dim", values)
    kind: Kind = "sliding" if window else "chunked" if chunk else "full"
    what = f"{kv_heads} x {head_dim}" if values == head_dim else f"{kv_heads} x {head_dim}/{values}"
    elements = kv_heads * (head_dim + values)
    return Layers(kind, count, elements=elements, dims=(head_dim, values), span=window or chunk, what=what)


def latent(count: int, rank: int, rope: int, *, index_dim: int = 0) -> Layers:
    """Make layers of MLA (multi-head latent attention), which keep a latent and a position vector per token.

    These layers have no heads. With ``index_dim``, the index of sparse attention is added: a key of
    ``index_dim`` fp8 elements, and a scale for each 128 of them.
    """
    require_count("latent_dim", rank)
    require_count("rope", rope, least=0)
    scales = -(-index_dim // _INDEX_GROUP)
    index = index_dim + scales * _INDEX_SCALE_BYTES
    what = f"MLA {rank}" + (f" + {rope}" if rope else "") + (f", index {index_dim}" if index_dim else "")
    elements = rank + rope
    return Layers(
        "full", count, elements=elements, dims=(rank, rope), latent=True, index_bytes=index, what=what
    )


def _require_counts(**numbers: int) -> None:
    for field, value in numbers.items():
        require_count(field, value)


def _state(count: int, conv: int, recurrent: int, conv_bytes: int, recurrent_bytes: int, what: str) -> Layers:
    return Layers("state", count, state_bytes=conv * conv_bytes + recurrent * recurrent_bytes, what=what)


def gated_delta_net(
    count: int,
    *,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    kernel: int = 4,
    conv_bytes: int = 2,
    state_bytes: int = 2,
) -> Layers:
    """Make layers with the linear attention of Qwen3-Next and Qwen3.5.

    For each value head, the state contains a matrix of key elements by value elements. For the
    convolution over keys, queries and values, it contains the inputs of the last ``kernel - 1`` tokens.
    """
    _require_counts(
        key_heads=key_heads, value_heads=value_heads, key_dim=key_dim, value_dim=value_dim, kernel=kernel
    )
    conv = (kernel - 1) * (2 * key_heads * key_dim + value_heads * value_dim)
    recurrent = value_heads * key_dim * value_dim
    what = f"delta net {value_heads} x {key_dim} x {value_dim}"
    return _state(count, conv, recurrent, conv_bytes, state_bytes, what)


def kimi_delta_attention(
    count: int, *, heads: int, head_dim: int, kernel: int = 4, conv_bytes: int = 2, state_bytes: int = 4
) -> Layers:
    """Make layers with the linear attention of Kimi Linear.

    The state contains a square matrix per head in fp32, and the last inputs of the convolutions over
    keys, queries and values.
    """
    _require_counts(heads=heads, head_dim=head_dim, kernel=kernel)
    conv = (kernel - 1) * 3 * heads * head_dim
    what = f"KDA {heads} x {head_dim} x {head_dim}"
    return _state(count, conv, heads * head_dim * head_dim, conv_bytes, state_bytes, what)


def mamba2(
    count: int,
    *,
    heads: int,
    head_dim: int,
    groups: int,
    state: int,
    kernel: int = 4,
    conv_bytes: int = 2,
    state_bytes: int = 2,
) -> Layers:
    """Make Mamba-2 layers.

    The state contains ``head_dim`` by ``state`` elements per head, and the last inputs of a convolution
    over the layer's inputs and over two vectors per group.
    """
    _require_counts(heads=heads, head_dim=head_dim, state=state, kernel=kernel)
    require_count("groups", groups, least=0)
    conv = (kernel - 1) * (heads * head_dim + 2 * groups * state)
    what = f"Mamba-2 {heads} x {head_dim} x {state}"
    return _state(count, conv, heads * head_dim * state, conv_bytes, state_bytes, what)


def mamba1(
    count: int, *, inner: int, state: int, kernel: int = 4, conv_bytes: int = 2, state_bytes: int = 2
) -> Layers:
    """Make Mamba layers, whose state has ``state`` elements per inner channel, and convolution inputs."""
    _require_counts(inner=inner, state=state, kernel=kernel)
    return _state(
        count, (kernel - 1) * inner, inner * state, conv_bytes, state_bytes, f"Mamba {inner} x {state}"
    )


def short_convolution(count: int, *, channels: int, kernel: int, conv_bytes: int = 2) -> Layers:
    """Make layers with a convolution, as in LFM2. The state is the earlier inputs that it reads."""
    _require_counts(channels=channels, kernel=kernel)
    return _state(count, (kernel - 1) * channels, 0, conv_bytes, 0, f"convolution {kernel} x {channels}")


def lightning_attention(count: int, *, heads: int, head_dim: int, state_bytes: int = 4) -> Layers:
    """Make the linear attention of MiniMax, Ling and MiniCPM. It keeps a square fp32 matrix per head."""
    _require_counts(heads=heads, head_dim=head_dim)
    what = f"lightning {heads} x {head_dim} x {head_dim}"
    return _state(count, 0, heads * head_dim * head_dim, 0, state_bytes, what)


def gated_linear_recurrence(
    count: int, *, width: int, kernel: int, conv_bytes: int = 2, state_bytes: int = 4
) -> Layers:
    """Make layers with the RG-LRU (gated linear recurrence) of RecurrentGemma.

    The state contains one fp32 element per channel, and the last inputs of a convolution over the
    channels.
    """
    _require_counts(width=width, kernel=kernel)
    return _state(count, (kernel - 1) * width, width, conv_bytes, state_bytes, f"RG-LRU {width}")
