"""KV-cache shapes of well-known models: how many bytes a token, a block and a pool take.

A catalogue for sizing: "how many 16-token blocks of Llama-3.1-70B fit into 60 GiB?". It needs no
model files and no network. The figures are those of the published ``config.json`` files; an engine
that knows the model's own configuration should build a :class:`KvShape` from it.

All sizes are bytes of the whole model, over all layers: with tensor parallelism, divide by the
number of ranks (MLA latents are not split, so every rank holds all of them). Layers with a sliding
window (Gemma 2, gpt-oss, the first Mistral 7B; :attr:`KvShape.windowed`) are counted in full; engines
that drop what lies outside the window need less.

>>> llama = kv_shape("llama-3.1-8b")
>>> llama.bytes_per_token
131072
>>> llama.blocks_in(gib=60, block_size=16)
30720
>>> kv_shape("Llama-3.1-8B", dtype="fp8").bytes_per_token
65536
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from typing import Final

__all__ = ["DTYPE_BYTES", "KvShape", "kv_shape", "model_names"]

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

_GIB: Final = 1 << 30


def _require_count(field: str, value: object) -> None:
    """Refuses what is no whole number of 1 or more; ``True`` is no number here."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{field} is {value!r}; allowed: a whole number, 1 or more")


@dataclasses.dataclass(frozen=True, slots=True)
class KvShape:
    """What one token leaves in the KV cache of a model.

    Ordinary attention stores a key and a value vector per KV head and layer. Multi-head latent
    attention (MLA) stores one latent vector per layer instead, from which keys and values are made:
    then ``latent_dim`` is its length and ``kv_heads`` and ``head_dim`` play no part.

    >>> KvShape("mine", layers=2, kv_heads=4, head_dim=64, dtype_bytes=2).bytes_per_token
    2048
    >>> KvShape("mine", layers=2, kv_heads=0, head_dim=64, dtype_bytes=2)
    Traceback (most recent call last):
    ...
    ValueError: kv_heads is 0; allowed: a whole number, 1 or more
    """

    #: The model's name, as people write it.
    name: str
    #: Layers that keep keys and values.
    layers: int
    #: Key/value heads per layer (not query heads).
    kv_heads: int
    #: Elements of one head's key, and of its value.
    head_dim: int
    #: Bytes of one element.
    dtype_bytes: int
    #: Elements of the latent vector with its position part (MLA); ``None`` for ordinary attention.
    latent_dim: int | None = None
    #: Whether some layers see a sliding window alone. All sizes count them in full: they are upper bounds for an engine
    #: that frees what lies outside the window.
    windowed: bool = False

    def __post_init__(self) -> None:
        for field in ("layers", "kv_heads", "head_dim", "dtype_bytes"):
            _require_count(field, getattr(self, field))
        if self.latent_dim is not None:
            _require_count("latent_dim", self.latent_dim)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token over all layers.

        >>> kv_shape("DeepSeek-V3").bytes_per_token  # 61 layers, 512 + 64 elements of 2 bytes
        70272
        """
        vectors = 2 * self.kv_heads * self.head_dim
        elements = vectors if self.latent_dim is None else self.latent_dim
        return self.layers * elements * self.dtype_bytes

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes of one block of ``block_size`` tokens over all layers.

        >>> kv_shape("Llama-3.1-8B").bytes_per_block(16) // 2**20
        2

        Raises:
            ValueError: ``block_size`` is no whole number of 1 or more.
        """
        _require_count("block_size", block_size)
        return self.bytes_per_token * block_size

    def blocks_in(self, gib: float, block_size: int) -> int:
        """How many whole blocks of ``block_size`` tokens fit into ``gib`` GiB (2**30 bytes each).

        >>> kv_shape("Llama-3.1-70B").blocks_in(gib=0.5, block_size=16)
        102

        Raises:
            ValueError: ``gib`` is negative or not finite, or ``block_size`` no whole number of 1 or more.
        """
        if not isinstance(gib, (int, float)) or isinstance(gib, bool) or not math.isfinite(gib) or gib < 0:
            raise ValueError(f"gib is {gib!r}; allowed: a number, 0 or more")
        return int(gib * _GIB) // self.bytes_per_block(block_size)


def kv_shape(name: str, dtype: str | None = None) -> KvShape:
    """The shape of a model in the catalogue, with ``dtype`` elements (default: 2 bytes, bf16 or fp16).

    Case does not matter, nor do an organisation in front (``meta-llama/``), ``_`` for ``-``, and
    endings that leave the shape as it is (``-Instruct``, ``-Chat``, ``-it``, ``-hf``, ``-Base``).

    >>> kv_shape("meta-llama/Llama-3.1-8B-Instruct").name
    'Llama-3.1-8B'
    >>> kv_shape("Llama-3.1-8")
    Traceback (most recent call last):
    ...
    ValueError: unknown model 'Llama-3.1-8'; did you mean Llama-3.1-8B, Llama-3-8B or Llama-3.1-70B?

    Raises:
        ValueError: the model or the dtype is unknown; the message names those that come close.
    """
    shape = _BY_KEY.get(_key(name)) if isinstance(name, str) else None
    if shape is None:
        raise ValueError(f"unknown model {name!r}; {_suggestion(_key(str(name)))}")
    if dtype is None:
        return shape
    dtype_bytes = DTYPE_BYTES.get(dtype.lower()) if isinstance(dtype, str) else None
    if dtype_bytes is None:
        raise ValueError(f"unknown dtype {dtype!r}; allowed: {', '.join(DTYPE_BYTES)}")
    return dataclasses.replace(shape, dtype_bytes=dtype_bytes)


def model_names() -> list[str]:
    """The names of all models in the catalogue, in its order: by family, then by size.

    >>> model_names()[:2]
    ['Llama-3.1-8B', 'Llama-3.1-70B']
    """
    return [shape.name for shape in _CATALOGUE]


def _gqa(name: str, layers: int, kv_heads: int, head_dim: int, *, windowed: bool = False) -> KvShape:
    """A model with key and value vectors, in 2-byte elements."""
    return KvShape(name, layers, kv_heads, head_dim, dtype_bytes=2, windowed=windowed)


def _mla(name: str, layers: int) -> KvShape:
    """A DeepSeek-style MLA model: 512 latent elements and 64 with the position, in 2 bytes each."""
    return KvShape(name, layers, kv_heads=1, head_dim=576, dtype_bytes=2, latent_dim=576)


#: num_hidden_layers, num_key_value_heads and head_dim of the published configurations.
_CATALOGUE: Final[tuple[KvShape, ...]] = (
    _gqa("Llama-3.1-8B", 32, 8, 128),
    _gqa("Llama-3.1-70B", 80, 8, 128),
    _gqa("Llama-3.1-405B", 126, 8, 128),
    _gqa("Llama-3.2-1B", 16, 8, 64),
    _gqa("Llama-3.2-3B", 28, 8, 128),
    _gqa("Llama-3.3-70B", 80, 8, 128),
    _gqa("Llama-3-8B", 32, 8, 128),
    _gqa("Llama-3-70B", 80, 8, 128),
    _gqa("Llama-2-7B", 32, 32, 128),
    _gqa("Llama-2-13B", 40, 40, 128),
    _gqa("Llama-2-70B", 80, 8, 128),
    _gqa("Mistral-7B", 32, 8, 128, windowed=True),  # its first version
    _gqa("Mixtral-8x7B", 32, 8, 128),
    _gqa("Mixtral-8x22B", 56, 8, 128),
    _gqa("Qwen2.5-0.5B", 24, 2, 64),
    _gqa("Qwen2.5-1.5B", 28, 2, 128),
    _gqa("Qwen2.5-7B", 28, 4, 128),
    _gqa("Qwen2.5-14B", 48, 8, 128),
    _gqa("Qwen2.5-32B", 64, 8, 128),
    _gqa("Qwen2.5-72B", 80, 8, 128),
    _gqa("Qwen3-0.6B", 28, 8, 128),
    _gqa("Qwen3-1.7B", 28, 8, 128),
    _gqa("Qwen3-4B", 36, 8, 128),
    _gqa("Qwen3-8B", 36, 8, 128),
    _gqa("Qwen3-14B", 40, 8, 128),
    _gqa("Qwen3-32B", 64, 8, 128),
    _gqa("Qwen3-30B-A3B", 48, 4, 128),
    _gqa("Qwen3-235B-A22B", 94, 4, 128),
    _mla("DeepSeek-V2-Lite", 27),
    _mla("DeepSeek-V2", 60),
    _mla("DeepSeek-V3", 61),
    _mla("DeepSeek-R1", 61),
    _gqa("gpt-oss-20b", 24, 8, 64, windowed=True),
    _gqa("gpt-oss-120b", 36, 8, 64, windowed=True),
    _gqa("Gemma-2-2B", 26, 4, 256, windowed=True),
    _gqa("Gemma-2-9B", 42, 8, 256, windowed=True),
    _gqa("Gemma-2-27B", 46, 16, 128, windowed=True),
    _gqa("Phi-3-mini", 32, 32, 96),
    _gqa("GPT-2", 12, 12, 64),
    _gqa("OPT-125m", 12, 12, 64),
)

#: Endings of names that say how a model was trained or packed, not what shape it has.
_ENDINGS: Final = ("-instruct", "-chat", "-base", "-it", "-hf")


def _key(name: str) -> str:
    """The name that look-up goes by."""
    key = name.strip().lower().rsplit("/", 1)[-1].replace("_", "-").replace(" ", "-")
    key = key.removeprefix("meta-")
    # "-chat-hf" has two of them.
    while (ending := next((end for end in _ENDINGS if key.endswith(end)), None)) is not None:
        key = key.removesuffix(ending)
    return key


_BY_KEY: Final[dict[str, KvShape]] = {_key(shape.name): shape for shape in _CATALOGUE}
# The same model under the other name that is in use.
_BY_KEY["gpt2"] = _BY_KEY["gpt-2"]


def _suggestion(key: str) -> str:
    """The end of a message about an unknown name: up to three that begin with it or look like it."""
    begin = [other for other in _BY_KEY if key and other.startswith(key)]
    alike = difflib.get_close_matches(key, _BY_KEY, n=3, cutoff=0.5)
    # In this order, and each model once, whatever names it has.
    names = list(dict.fromkeys(_BY_KEY[other].name for other in [*begin, *alike]))[:3]
    if not names:
        return "see kvpool.models.model_names()"
    *front, last = names
    return f"did you mean {', '.join(front)} or {last}?" if front else f"did you mean {last}?"
