"""Formats of elements in a KV cache, and the bytes that a key, a value or a latent takes in each format.

Some formats keep scales in the cache, beside the elements. The sizes here include these scales. Scales
of a whole tensor are part of the weights, and are not included. The layouts are those of vLLM
(``v1/kv_cache_interface.py``, ``v1/attention/backends``):

- ``nvfp4``: 4 bits per element, and an fp8 scale for each 16 elements of a vector. Available for heads,
  not for MLA.
- ``int4`` (``int4_per_token_head``): 4 bits per element, and 4 bytes of scale and zero point per
  vector. LMDeploy's int4 has the same size.
- ``int8_per_token_head``, ``fp8_per_token_head``: 1 byte per element, and 4 bytes of scale per vector.
  Plain ``int8`` and ``fp8`` have no scales in the cache.
- ``fp8_ds_mla``: only for MLA with sparse attention and 512 + 64 elements. A token has 512 elements of
  fp8, 4 scales of fp32, and 64 elements of bf16.
- ``nvfp4_ds_mla``: only for the same models. A token has 512 elements of fp4 with 32 scales of fp8, and 64
  elements of fp8.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvpool.models.layers import Layers

__all__ = ["DTYPE_BYTES", "dtype_name", "token_bytes"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Format:
    bits: int
    #: Number of elements of a vector that share a scale of one byte; 0 for formats without such
    #: scales.
    group: int = 0
    #: Bytes of the scale that each vector (a key or value of one head and token) has.
    vector_bytes: int = 0
    #: Bytes of a token in one layer of sparse MLA, over the whole layout of 512 + 64 elements.
    sparse_latent: int = 0


_PLAIN: Final = {
    "fp32": 32,
    "float32": 32,
    "bf16": 16,
    "bfloat16": 16,
    "fp16": 16,
    "float16": 16,
    "half": 16,
    "fp8": 8,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "int8": 8,
}
_FORMATS: Final[dict[str, _Format]] = {
    **{name: _Format(bits) for name, bits in _PLAIN.items()},
    "fp8_per_token_head": _Format(8, vector_bytes=4),
    "int8_per_token_head": _Format(8, vector_bytes=4),
    "nvfp4": _Format(4, group=16),
    "int4": _Format(4, vector_bytes=4),
    "int4_per_token_head": _Format(4, vector_bytes=4),
    "fp8_ds_mla": _Format(8, sparse_latent=656),
    "nvfp4_ds_mla": _Format(4, sparse_latent=352),
}

#: Bytes of one element without scales, by the names of formats that engines and checkpoints use.
DTYPE_BYTES: Final[dict[str, float]] = {
    name: one.bits // 8 if one.bits >= 8 else one.bits / 8 for name, one in _FORMATS.items()
}


def dtype_name(dtype: object) -> str:
    """Return the name of a format in the spelling of :data:`DTYPE_BYTES`.

    Raises:
        ValueError: No format has this name.
    """
    name = dtype.lower() if isinstance(dtype, str) else ""
    if name not in _FORMATS:
        raise ValueError(f"unknown dtype {dtype!r}; allowed: {', '.join(_FORMATS)}")
    return name


def token_bytes(layers: Layers, dtype: str, *, sparse: bool) -> int:
    """Return the bytes of one token in one of these layers, in the format ``dtype``.

    Args:
        layers: Layers that keep tokens. For states, the result is 0.
        dtype: A key of :data:`DTYPE_BYTES`.
        sparse: Whether the model has sparse attention, with an index.

    Raises:
        ValueError: The format does not exist for such layers.
    """
    one = _FORMATS[dtype]
    if layers.kind == "state":
        return 0
    if one.sparse_latent:
        if not layers.latent or not sparse or layers.dims != (512, 64):
            raise ValueError(
                f"dtype is {dtype!r}, a format of sparse MLA with 512 + 64 elements; the model has "
                f"{layers.what}"
            )
        return one.sparse_latent + layers.index_bytes
    if (one.group or one.vector_bytes) and not layers.dims:
        raise ValueError(
            f"dtype is {dtype!r}, which has scales per vector; the layers have no length of a vector"
        )
    if one.group and (layers.latent or layers.dims[0] != layers.dims[1] or layers.dims[0] % one.group):
        raise ValueError(
            f"dtype is {dtype!r}, a format of keys and values of equal length, a multiple of {one.group}; "
            f"the model has {layers.what}"
        )
    if one.bits < 8 and any(dim % 2 for dim in layers.dims):
        raise ValueError(
            f"dtype is {dtype!r}, which packs two elements in a byte; the model has {layers.what}"
        )
    scales = layers.elements // one.group if one.group else layers.vectors * one.vector_bytes
    return layers.elements * one.bits // 8 + scales + layers.index_bytes
