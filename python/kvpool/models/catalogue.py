"""The catalogue of well-known models, and the lookup by name.

**Source of the figures**: the published ``config.json`` of each model. All of these files have
``num_hidden_layers``, ``num_key_value_heads`` and ``head_dim`` (or ``hidden_size /
num_attention_heads``). Some have further fields:

- Windows: ``sliding_window`` is the length, and ``layer_types`` lists the layers that have a window. In
  Gemma 2, this is every other layer, and in Gemma 3 five of six.
- Chunks (Llama 4): ``attention_chunk_size``. Three of four layers have chunks; ``no_rope_layers`` marks
  them with 1.
- MLA: ``kv_lora_rank`` + ``qk_rope_head_dim``. Models with sparse attention (DeepSeek-V3.2, GLM-5) also
  have ``index_head_dim``. Their index is in fp8, with 4 bytes of scale per 128 elements.
- Qwen3-Next, Qwen3.5 and Qwen3.6: ``full_attention_interval`` and the five fields ``linear_*``. The
  state has the dtype of ``mamba_ssm_dtype``, or bf16 without that field.
- Kimi Linear: ``linear_attn_config``. The recurrent state is in fp32.
- Nemotron and Granite: ``hybrid_override_pattern`` or ``layer_types``, and the number of heads,
  head_dim, groups, state size and kernel of Mamba-2. Nemotron's state has the dtype of
  ``mamba_ssm_cache_dtype``, or fp32 without that field. Granite's state is in bf16, the default of vLLM
  0.33.

Some figures come from model cards and from copies of the file: MiniMax-M2, Qwen3.5, Qwen3.6,
Qwen3-Coder, GLM-4.7-Flash. Some are assumed to equal those of a predecessor, and were not checked:
GLM-4.7 (GLM-4.6), Kimi-K2.5 (Kimi-K2), Mistral-Small-3.2 (3.1). To use the figures of your own file,
pass ``--config config.json`` on the command line, or call :func:`kvpool.models.read_config`.

Layers of draft heads (MTP, EAGLE) are not counted. Models whose attention keeps one entry for several
tokens (DeepSeek-V4) are left out, because kvpool has no shape for them yet.
"""

from __future__ import annotations

import difflib
from typing import Final

from kvpool.models.layers import attention, gated_delta_net, kimi_delta_attention, latent, mamba2
from kvpool.models.shape import KvShape

__all__ = ["kv_shape", "model_names", "with_dtype"]


def kv_shape(name: str, dtype: str | None = None) -> KvShape:
    """Return the shape of a model in the catalogue. Elements have 2 bytes unless ``dtype`` is given.

    The match ignores case, an organisation in front of the name (``meta-llama/``), and the difference
    between ``_`` and ``-``. It also ignores endings that do not change the shape (``-Instruct``,
    ``-Chat``, ``-it``, ``-hf``, ``-Base``).

    >>> kv_shape("meta-llama/Llama-3.1-8B-Instruct").name
    'Llama-3.1-8B'
    >>> kv_shape("Llama-3.1-8")
    Traceback (most recent call last):
    ...
    ValueError: unknown model 'Llama-3.1-8'; did you mean Llama-3.1-8B, Llama-3-8B or Llama-3.1-70B?

    Raises:
        ValueError: The model or the dtype is unknown. The message names similar ones.
    """
    shape = _BY_KEY.get(_key(name)) if isinstance(name, str) else None
    if shape is None:
        raise ValueError(f"unknown model {name!r}; {_suggestion(_key(str(name)))}")
    return with_dtype(shape, dtype)


def with_dtype(shape: KvShape, dtype: str | None) -> KvShape:
    """Return the same shape with keys, values and latents of another dtype; ``None`` leaves it unchanged.

    Raises:
        ValueError: The dtype is unknown, or does not exist for this shape, such as ``nvfp4`` for MLA.
    """
    return shape if dtype is None else shape.with_dtype(dtype)


def model_names() -> list[str]:
    """Return the names of all models in the catalogue, ordered by family, and within a family by size.

    >>> model_names()[:2]
    ['Llama-3.1-8B', 'Llama-3.1-70B']
    """
    return [shape.name for shape in _CATALOGUE]


_full = KvShape.of_heads


def _windowed(name: str, full: int, sliding: int, kv_heads: int, head_dim: int, window: int) -> KvShape:
    """Make a shape in which ``full`` layers have full attention and ``sliding`` layers have a window."""
    layers = attention(full, kv_heads, head_dim), attention(sliding, kv_heads, head_dim, window=window)
    return KvShape(name, layers)


def _chunked(name: str, full: int, chunked: int, kv_heads: int, head_dim: int, chunk: int) -> KvShape:
    return KvShape(
        name, (attention(full, kv_heads, head_dim), attention(chunked, kv_heads, head_dim, chunk=chunk))
    )


def _mla(name: str, layers: int, *, index_dim: int = 0) -> KvShape:
    """Make a model with DeepSeek's MLA: 512 latent elements, and 64 elements that carry the position."""
    return KvShape(name, (latent(layers, 512, 64, index_dim=index_dim),))


def _qwen(name: str, full: int, kv_heads: int, value_heads: int, state_bytes: int) -> KvShape:
    """Make a Qwen model in which three of four layers are a gated delta net with 16 key heads.

    The heads of the delta net have 128 elements.
    """
    net = gated_delta_net(
        3 * full, key_heads=16, value_heads=value_heads, key_dim=128, value_dim=128, state_bytes=state_bytes
    )
    return KvShape(name, (attention(full, kv_heads, 256), net))


def _nemotron(name: str, full: int, mamba: int, kv_heads: int, heads: int, head_dim: int) -> KvShape:
    """Make a Nemotron model: Mamba-2 with 8 groups and 128 elements of state in fp32.

    Layers that are neither attention nor Mamba-2 keep no KV.
    """
    state = mamba2(mamba, heads=heads, head_dim=head_dim, groups=8, state=128, state_bytes=4)
    return KvShape(name, (attention(full, kv_heads, 128), state))


_CATALOGUE: Final[tuple[KvShape, ...]] = (
    _full("Llama-3.1-8B", 32, 8, 128),
    _full("Llama-3.1-70B", 80, 8, 128),
    _full("Llama-3.1-405B", 126, 8, 128),
    _full("Llama-3.2-1B", 16, 8, 64),
    _full("Llama-3.2-3B", 28, 8, 128),
    _full("Llama-3.3-70B", 80, 8, 128),
    _chunked("Llama-4-Scout", 12, 36, 8, 128, 8192),
    _chunked("Llama-4-Maverick", 12, 36, 8, 128, 8192),
    _full("Llama-3-8B", 32, 8, 128),
    _full("Llama-3-70B", 80, 8, 128),
    _full("Llama-2-7B", 32, 32, 128),
    _full("Llama-2-13B", 40, 40, 128),
    _full("Llama-2-70B", 80, 8, 128),
    _full("Mistral-7B", 32, 8, 128),
    # Only the first version of Mistral-7B has a window.
    KvShape("Mistral-7B-v0.1", (attention(32, 8, 128, window=4096),)),
    _full("Mistral-Small-3.2-24B", 40, 8, 128),
    _full("Mixtral-8x7B", 32, 8, 128),
    _full("Mixtral-8x22B", 56, 8, 128),
    _full("Qwen2.5-0.5B", 24, 2, 64),
    _full("Qwen2.5-1.5B", 28, 2, 128),
    _full("Qwen2.5-7B", 28, 4, 128),
    _full("Qwen2.5-14B", 48, 8, 128),
    _full("Qwen2.5-32B", 64, 8, 128),
    _full("Qwen2.5-72B", 80, 8, 128),
    _full("Qwen3-0.6B", 28, 8, 128),
    _full("Qwen3-1.7B", 28, 8, 128),
    _full("Qwen3-4B", 36, 8, 128),
    _full("Qwen3-8B", 36, 8, 128),
    _full("Qwen3-14B", 40, 8, 128),
    _full("Qwen3-32B", 64, 8, 128),
    _full("Qwen3-30B-A3B", 48, 4, 128),
    _full("Qwen3-235B-A22B", 94, 4, 128),
    _full("Qwen3-Coder-480B-A35B", 62, 8, 128),
    _qwen("Qwen3-Next-80B-A3B", 12, 2, 32, state_bytes=2),
    _qwen("Qwen3-Coder-Next", 12, 2, 32, state_bytes=2),
    _qwen("Qwen3.5-4B", 8, 4, 32, state_bytes=4),
    _qwen("Qwen3.5-27B", 16, 4, 48, state_bytes=4),
    _qwen("Qwen3.5-35B-A3B", 10, 2, 32, state_bytes=4),
    _qwen("Qwen3.5-397B-A17B", 15, 2, 64, state_bytes=4),
    _qwen("Qwen3.6-27B", 16, 4, 48, state_bytes=4),
    _qwen("Qwen3.6-35B-A3B", 10, 2, 32, state_bytes=4),
    _mla("DeepSeek-V2-Lite", 27),
    _mla("DeepSeek-V2", 60),
    _mla("DeepSeek-V3", 61),
    _mla("DeepSeek-V3.1", 61),
    _mla("DeepSeek-V3.2", 61, index_dim=128),
    _mla("DeepSeek-R1", 61),
    _mla("Kimi-K2", 61),
    _mla("Kimi-K2.5", 61),
    KvShape("Kimi-Linear-48B-A3B", (latent(7, 512, 64), kimi_delta_attention(20, heads=32, head_dim=128))),
    _full("GLM-4.5", 92, 8, 128),
    _full("GLM-4.5-Air", 46, 8, 128),
    _full("GLM-4.6", 92, 8, 128),
    _full("GLM-4.7", 92, 8, 128),
    _mla("GLM-4.7-Flash", 47),
    _mla("GLM-5", 78, index_dim=128),
    _full("MiniMax-M2", 62, 8, 128),
    _windowed("gpt-oss-20b", 12, 12, 8, 64, 128),
    _windowed("gpt-oss-120b", 18, 18, 8, 64, 128),
    _windowed("Gemma-2-2B", 13, 13, 4, 256, 4096),
    _windowed("Gemma-2-9B", 21, 21, 8, 256, 4096),
    _windowed("Gemma-2-27B", 23, 23, 16, 128, 4096),
    _windowed("Gemma-3-1B", 4, 22, 1, 256, 512),
    _windowed("Gemma-3-4B", 5, 29, 4, 256, 1024),
    _windowed("Gemma-3-12B", 8, 40, 8, 256, 1024),
    _windowed("Gemma-3-27B", 10, 52, 16, 128, 1024),
    # In Gemma 4, layers with full attention have fewer and larger heads than layers with windows.
    KvShape("Gemma-4-26B-A4B", (attention(5, 2, 512), attention(25, 8, 256, window=1024))),
    KvShape("Gemma-4-31B", (attention(10, 4, 512), attention(50, 16, 256, window=1024))),
    _nemotron("Nemotron-H-8B", 4, 24, 8, 128, 64),
    _nemotron("Nemotron-Nano-9B-v2", 4, 27, 8, 128, 80),
    _nemotron("Nemotron-3-Nano-30B-A3B", 6, 23, 2, 64, 64),
    KvShape(
        "Granite-4.0-H-Small",
        (attention(4, 8, 128), mamba2(36, heads=128, head_dim=64, groups=1, state=128)),
    ),
    _full("Phi-3-mini", 32, 32, 96),
    _full("GPT-2", 12, 12, 64),
    _full("OPT-125m", 12, 12, 64),
)

#: Endings of model names that describe training or packing, not the shape of the KV cache.
_ENDINGS: Final = ("-instruct", "-chat", "-base", "-it", "-hf", "-bf16", "-fp8")


def _key(name: str) -> str:
    """Return the form of a model's name that lookups in the catalogue compare."""
    key = name.strip().lower().rsplit("/", 1)[-1].replace("_", "-").replace(" ", "-")
    key = key.removeprefix("meta-").removeprefix("nvidia-")
    # a name can have two endings, such as "-chat-hf"
    while (ending := next((end for end in _ENDINGS if key.endswith(end)), None)) is not None:
        key = key.removesuffix(ending)
    return key


_BY_KEY: Final[dict[str, KvShape]] = {_key(shape.name): shape for shape in _CATALOGUE}
_BY_KEY["gpt2"] = _BY_KEY["gpt-2"]
_BY_KEY["llama-4-scout-17b-16e"] = _BY_KEY["llama-4-scout"]
_BY_KEY["llama-4-maverick-17b-128e"] = _BY_KEY["llama-4-maverick"]


def _suggestion(key: str) -> str:
    """Return the hint for an error about an unknown name.

    The hint contains up to three model names that begin with the unknown name or are similar to it.
    """
    begin = [other for other in _BY_KEY if key and other.startswith(key)]
    alike = difflib.get_close_matches(key, _BY_KEY, n=3, cutoff=0.5)
    # Names that begin with the key come first. A model that has several names is listed once.
    names = list(dict.fromkeys(_BY_KEY[other].name for other in [*begin, *alike]))[:3]
    if not names:
        return "see kvpool.models.model_names()"
    *front, last = names
    return f"did you mean {', '.join(front)} or {last}?" if front else f"did you mean {last}?"
