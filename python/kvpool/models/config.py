"""A model's shape from its ``config.json``, as Hugging Face checkpoints have it.

Owns which field says what; :mod:`kvpool.models.layers` has the arithmetic. Nothing is guessed: a layer of an unknown
kind, a missing field, a value of a wrong type or out of range is a :class:`~kvpool.errors.ModelConfigError` that names
the field. Where a family's checkpoints leave a field out because its code has a default, the default is here
(:data:`_DEFAULTS`).

Files are data from outside: at most 16 MiB, numbers at most 2**24 (spans 2**40), layers at most 10,000. Costs: O(file).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvpool.errors import ModelConfigError
from kvpool.models.fields import Fields
from kvpool.models.kinds import layer_kinds
from kvpool.models.layers import (
    Layers,
    attention,
    gated_delta_net,
    kimi_delta_attention,
    latent,
    mamba1,
    mamba2,
    short_convolution,
)
from kvpool.models.shape import KvShape

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

__all__ = ["parse_config", "read_config"]

_MOST_BYTES: Final = 16 << 20

#: Where a model of several parts keeps the part that generates text.
_TEXT_PARTS: Final = ("text_config", "llm_config", "language_config", "thinker_config")

#: Fields that checkpoints of a family leave out.
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
    "gemma2": {"head_dim": 256, "sliding_window": 4096},
    "gpt_oss": {"sliding_window": 128, "head_dim": 64},
    "llama4_text": {"attention_chunk_size": 8192, "head_dim": 128, "num_key_value_heads": 8},
}


def read_config(path: str | PathLike[str]) -> KvShape:
    """Read the shape of a model from its ``config.json``, or from the folder that has one.

    Raises:
        ModelConfigError: the file is no such configuration, or describes layers that kvpool does not know; ``field`` is
            what is wrong in it.
        OSError: the file cannot be read.

    """
    path = Path(path)
    if path.is_dir():
        path /= "config.json"
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ModelConfigError(f"{path}: larger than {_MOST_BYTES >> 20} MiB: no config.json of a model")
    try:
        return parse_config(data)
    except ModelConfigError as error:
        raise ModelConfigError(f"{path}: {error}", error.field) from None


def parse_config(data: bytes | str) -> KvShape:
    """Read the shape of a model from the text of its ``config.json``.

    >>> parse_config('{"num_hidden_layers": 2, "num_key_value_heads": 4, "head_dim": 64}').bytes_per_token
    2048
    >>> parse_config('{"model_type": "llama", "num_hidden_layers": "two"}')
    Traceback (most recent call last):
    ...
    kvpool.errors.ModelConfigError: num_hidden_layers is 'two': must be a whole number, 1 to 10,000

    Raises:
        ModelConfigError: as :func:`read_config`.

    """
    try:
        top = json.loads(data)
    except RecursionError:
        raise ModelConfigError("nested too deeply: no config.json of a model") from None
    except ValueError as error:
        # Bad JSON, bad UTF-8, a number of thousands of digits.
        raise ModelConfigError(f"no JSON: {error}") from None
    config = _text_part(Fields(top))
    if config.flag("is_encoder_decoder", default=False):
        raise config.refused("is_encoder_decoder", "false: cross attention is not counted")
    for unknown in ("compress_ratios", "compress_rates"):
        if config.has(unknown):
            raise config.refused(unknown, "absent: compressed attention is not known")
    kinds = layer_kinds(config)
    builders: dict[str, Callable[[Fields, int], Layers]] = {
        "full": _full,
        "sliding": _sliding,
        "chunked": _chunked,
        "linear": _linear,
        "mamba": _mamba,
        "conv": _convolution,
    }
    layers = tuple(builders[kind](config, count) for kind in builders if (count := kinds.count(kind)))
    if not layers:
        raise config.refused("layer_types", "at least one layer that keeps something")
    name = config.text("_name_or_path") or config.text("model_type") or "config.json"
    return KvShape(name.rstrip("/").rsplit("/", 1)[-1], layers)


def _text_part(config: Fields) -> Fields:
    """The part that has the layers, with the family's defaults."""
    while (part := next((name for name in _TEXT_PARTS if config.has(name)), None)) is not None:
        inner = config.inner(part)
        if not inner.has("model_type"):
            family = {"gemma3": "gemma3_text", "llama4": "llama4_text"}
            inner = inner.with_defaults(
                {"model_type": family.get(config.text("model_type"), config.text("model_type"))}
            )
        config = inner
    return config.with_defaults(_DEFAULTS.get(config.text("model_type"), {}))


def _heads(config: Fields, *, kv: str, dim: str, value_dim: str = "v_head_dim") -> tuple[int, int, int]:
    """KV heads, elements of a key, and of a value."""
    heads = ("num_attention_heads", "n_head", "n_heads")
    if config.flag("multi_query", default=False) and not config.flag("new_decoder_architecture", default=False):
        kv_heads = 1
    else:
        kv_heads = config.count(kv, "num_key_value_heads", "num_kv_heads", "n_head_kv", *heads)
    if config.has(dim) or config.has("head_dim"):
        head_dim = config.count(dim, "head_dim")
    else:
        number, hidden = config.count(*heads), config.count("hidden_size", "n_embd", "d_model")
        if hidden % number:
            raise config.refused("hidden_size", f"a multiple of the {number} attention heads, or head_dim given")
        head_dim = hidden // number
    return kv_heads, head_dim, config.count(value_dim) if config.has(value_dim) else head_dim


def _full(config: Fields, count: int) -> Layers:
    if not config.has("kv_lora_rank"):
        # Gemma 4 has other heads in its full attention than in its windows.
        kv_heads, head_dim, value_dim = _heads(config, kv="num_global_key_value_heads", dim="global_head_dim")
        return attention(count, kv_heads, head_dim, value_dim=value_dim)
    index = config.count("index_head_dim") if config.has("index_topk") and config.has("index_head_dim") else 0
    rank, rope = config.count("kv_lora_rank"), config.count("qk_rope_head_dim", least=0)
    return latent(count, rank, rope, index_dim=index)


def _sliding(config: Fields, count: int) -> Layers:
    # MiMo has other heads in its windows than in its full attention.
    kv_heads, head_dim, value_dim = _heads(
        config, kv="swa_num_key_value_heads", dim="swa_head_dim", value_dim="swa_v_head_dim"
    )
    window = config.count("sliding_window", "sliding_window_size", most=1 << 40)
    return attention(count, kv_heads, head_dim, value_dim=value_dim, window=window)


def _chunked(config: Fields, count: int) -> Layers:
    kv_heads, head_dim, _ = _heads(config, kv="num_key_value_heads", dim="head_dim")
    return attention(count, kv_heads, head_dim, chunk=config.count("attention_chunk_size", most=1 << 40))


def _linear(config: Fields, count: int) -> Layers:
    if config.has("linear_attn_config"):
        kimi = config.inner("linear_attn_config")
        heads, head_dim = kimi.count("num_heads"), kimi.count("head_dim")
        return kimi_delta_attention(
            count, heads=heads, head_dim=head_dim, kernel=_kernel(kimi, "short_conv_kernel_size")
        )
    return gated_delta_net(
        count,
        key_heads=config.count("linear_num_key_heads"),
        value_heads=config.count("linear_num_value_heads"),
        key_dim=config.count("linear_key_head_dim"),
        value_dim=config.count("linear_value_head_dim"),
        kernel=_kernel(config, "linear_conv_kernel_dim"),
        state_bytes=config.dtype_bytes("mamba_ssm_dtype", "mamba_ssm_cache_dtype", default=2),
    )


def _mamba(config: Fields, count: int) -> Layers:
    nemotron = config.text("model_type").startswith("nemotron")
    state_bytes = config.dtype_bytes("mamba_ssm_cache_dtype", "mamba_ssm_dtype", default=4 if nemotron else 2)
    kernel = _kernel(config, "conv_kernel", "mamba_d_conv", "conv_kernel_size")
    state = config.count("ssm_state_size", "mamba_d_state", "state_size")
    if config.has("mamba_num_heads") or config.has("mamba_n_heads") or config.has("n_mamba_heads"):
        return mamba2(
            count,
            heads=config.count("mamba_num_heads", "mamba_n_heads", "n_mamba_heads"),
            head_dim=config.count("mamba_head_dim", "mamba_d_head", "mamba_headdim"),
            groups=config.count("n_groups", "mamba_n_groups", "mamba_ngroups"),
            state=state,
            kernel=kernel,
            state_bytes=state_bytes,
        )
    inner = config.count("hidden_size") * config.count("mamba_expand", "expand")
    return mamba1(count, inner=inner, state=state, kernel=kernel, state_bytes=state_bytes)


def _convolution(config: Fields, count: int) -> Layers:
    return short_convolution(
        count, channels=config.count("conv_dim", "hidden_size"), kernel=_kernel(config, "conv_L_cache", least=2)
    )


def _kernel(config: Fields, *names: str, least: int = 1) -> int:
    return config.count(*names, least=least)
