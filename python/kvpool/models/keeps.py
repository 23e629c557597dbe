"""Readers of the amount of KV that one layer keeps, for each kind of layer.

Each function here makes a :class:`~kvpool.models.kinds.Reader` of one layer. The function's arguments
are the names of the fields in the family's configuration. If families have several names for the same
number, the argument lists them, and the first one present is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvpool.models import layers as arithmetic
from kvpool.models.kinds import Reader
from kvpool.models.layers import Layers

if TYPE_CHECKING:
    from kvpool.models.fields import Fields

__all__ = [
    "convolution",
    "delta_net",
    "heads",
    "kimi_delta",
    "lightning",
    "mamba_1",
    "mamba_2",
    "mla",
    "mla_or_heads",
    "recurrence",
]

Keeps = Reader[Layers]
Names = tuple[str, ...]

_MOST_SPAN: Final = 1 << 40
_QUERY: Final = ("num_attention_heads",)
_HIDDEN: Final = ("hidden_size",)
_SSM_DTYPE: Final = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")


def _all(*names: Names) -> frozenset[str]:
    return frozenset(name for some in names for name in some)


def heads(
    *,
    kv: Names = ("num_key_value_heads",),
    dim: Names = ("head_dim",),
    value: Names = (),
    query: Names = _QUERY,
    hidden: Names = _HIDDEN,
    equal: bool = False,
    quotient: bool = True,
    window: str = "",
    chunk: str = "",
    inside: str = "",
    times: int = 1,
) -> Keeps:
    """Read key and value heads.

    Args:
        kv: The fields with the number of KV heads.
        dim: The fields with the number of elements of a key.
        value: The fields with the number of elements of a value, if it can differ from that of a key.
            If they are absent or 0, the two are equal.
        query: The fields with the number of attention heads.
        hidden: The fields with the width of the model.
        equal: Whether a missing ``kv`` means one KV head per attention head.
        quotient: Whether a missing ``dim`` means ``hidden`` divided by the number of attention heads.
        window: The field with the number of tokens of the window.
        chunk: The field with the number of tokens of the chunk.
        inside: The field with an object that may contain ``kv`` instead.
        times: The factor by which the quotient of ``quotient`` is multiplied.
    """

    def read(config: Fields) -> Layers:
        place = config.inner(inside) if inside and config.has(inside) else config
        if inside and place is not config:
            place.require_known(frozenset(kv), inside)
        kv_heads = (
            place.count(*kv) if not equal or any(place.has(name) for name in kv) else config.count(*query)
        )
        if any(config.has(name) for name in dim) or not quotient:
            head_dim = config.count(*dim)
        else:
            number, width = config.count(*query), config.count(*hidden)
            if width % number:
                also = f", or {dim[0]} given" if dim else ""
                raise config.refused(hidden[0], f"a multiple of the {number} attention heads{also}")
            head_dim = width // number * times
        given = next((name for name in value if not config.zero(name)), "")
        return arithmetic.attention(
            1,
            kv_heads,
            head_dim,
            value_dim=config.count(given) if given else None,
            window=config.count(window, most=_MOST_SPAN) if window else 0,
            chunk=config.count(chunk, most=_MOST_SPAN) if chunk else 0,
        )

    extra = (window, chunk, inside) if window or chunk or inside else ()
    return Reader(_all(kv, dim, value, query, hidden, extra) - {""}, read)


#: Fields of MLA layers. Those that are sizes of queries, keys and values before compression do not
#: change the latent.
_MLA_NAMES: Final = (
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "qk_head_dim",
    "v_head_dim",
    "head_dim",
    "num_attention_heads",
    "num_key_value_heads",
)
_INDEX_NAMES: Final = ("index_head_dim", "index_n_heads", "index_topk", "indexer_rope_interleave")


def mla(*, index: bool = False) -> Keeps:
    """Read MLA (multi-head latent attention). With ``index``, also read the index of sparse attention."""

    def read(config: Fields) -> Layers:
        dim = config.count("index_head_dim") if index else 0
        rank, rope = config.count("kv_lora_rank"), config.count("qk_rope_head_dim", least=0)
        return arithmetic.latent(1, rank, rope, index_dim=dim)

    return Reader(_all(_MLA_NAMES, _INDEX_NAMES if index else ()), read)


def mla_or_heads() -> Keeps:
    """Read MLA, or key and value heads for models without ``kv_lora_rank`` (DeepSeek-OCR)."""
    compressed, plain = mla(), heads(equal=True, dim=("head_dim",), value=("v_head_dim",))

    def read(config: Fields) -> Layers:
        if config.has("kv_lora_rank") and config.flag("use_mla", default=True):
            return compressed.read(config)
        for name in ("qk_nope_head_dim", "qk_rope_head_dim"):
            if not config.zero(name):
                raise config.refused(name, "0 or absent in a model without kv_lora_rank")
        return plain.read(config)

    return Reader(compressed.names | plain.names | {"use_mla"}, read)


def delta_net(*, state_bytes: int = 2) -> Keeps:
    """Read Qwen's gated delta net.

    The elements of its matrices have the dtype that the configuration names, or ``state_bytes`` bytes
    if it names none.
    """
    names = (
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    )

    def read(config: Fields) -> Layers:
        key_heads, value_heads, key_dim, value_dim, kernel = (config.count(name) for name in names)
        return arithmetic.gated_delta_net(
            1,
            key_heads=key_heads,
            value_heads=value_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            kernel=kernel,
            state_bytes=config.dtype_bytes(*_SSM_DTYPE, default=state_bytes),
        )

    return Reader(_all(names, _SSM_DTYPE), read)


def kimi_delta() -> Keeps:
    """Read Kimi Delta Attention.

    Its fields are inside ``linear_attn_config``. transformers 5 writes them at the top level instead.
    """
    flat = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    inner = ("num_heads", "head_dim", "short_conv_kernel_size")

    def read(config: Fields) -> Layers:
        place, names = config, flat
        if config.has("linear_attn_config"):
            place, names = config.inner("linear_attn_config"), inner
            place.require_known({*inner, "kda_layers", "full_attn_layers"}, "Kimi Linear")
        number, dim, kernel = (place.count(name) for name in names)
        return arithmetic.kimi_delta_attention(1, heads=number, head_dim=dim, kernel=kernel)

    return Reader(_all(flat, ("linear_attn_config",)), read)


def lightning(query: Names = _QUERY, dim: Names = ("head_dim",)) -> Keeps:
    """Read lightning attention, which keeps one matrix per head, in fp32."""

    def read(config: Fields) -> Layers:
        number = config.count(*query)
        if any(config.has(name) for name in dim):
            head_dim = config.count(*dim)
        else:
            width = config.count("hidden_size")
            if width % number:
                raise config.refused(
                    "hidden_size", f"a multiple of the {number} attention heads, or {dim[0]} given"
                )
            head_dim = width // number
        return arithmetic.lightning_attention(1, heads=number, head_dim=head_dim)

    return Reader(_all(query, dim, _HIDDEN), read)


#: Fields of Mamba layers that do not change the size of their states.
_MAMBA_NAMES: Final = (
    "mamba_expand",
    "expand",
    "mamba_chunk_size",
    "chunk_size",
    "mamba_dt_rank",
    "mamba_d_ssm",
    "mamba_hidden_act",
    "hidden_mamba_act",
)


def mamba_2(
    *, number: Names, dim: Names, groups: Names, state: Names, kernel: Names, state_bytes: int = 2
) -> Keeps:
    """Read Mamba-2.

    Elements of its states have the dtype that the configuration names, or ``state_bytes`` bytes if it
    names none.

    The length of a head may be ``"auto"``. It is then ``mamba_expand`` times ``hidden_size``, divided
    by the number of heads.
    """

    def read(config: Fields) -> Layers:
        count = config.count(*number)
        name = next((one for one in dim if config.has(one)), dim[0])
        if config.is_text(name, "auto"):
            inner = config.count("mamba_expand") * config.count("hidden_size")
            if inner % count:
                raise config.refused(
                    name, f"given: {inner:,} inner channels are no multiple of {count} heads"
                )
            head_dim = inner // count
        else:
            head_dim = config.count(name)
        return arithmetic.mamba2(
            1,
            heads=count,
            head_dim=head_dim,
            groups=config.count(*groups) if groups else 0,
            state=config.count(*state),
            kernel=config.count(*kernel),
            state_bytes=config.dtype_bytes(*_SSM_DTYPE, default=state_bytes),
        )

    return Reader(_all(number, dim, groups, state, kernel, _SSM_DTYPE, _MAMBA_NAMES, _HIDDEN), read)


def mamba_1(*, state: Names, kernel: Names, expand: Names, inner: Names = ()) -> Keeps:
    """Read Mamba. The field ``inner`` is the number of inner channels.

    Without it, the number is ``hidden_size`` times ``expand``.
    """

    def read(config: Fields) -> Layers:
        if any(config.has(name) for name in inner):
            channels = config.count(*inner)
        else:
            channels = config.count("hidden_size") * config.count(*expand)
        return arithmetic.mamba1(
            1,
            inner=channels,
            state=config.count(*state),
            kernel=config.count(*kernel),
            state_bytes=config.dtype_bytes(*_SSM_DTYPE, default=2),
        )

    return Reader(_all(state, kernel, expand, inner, _HIDDEN, _SSM_DTYPE, _MAMBA_NAMES), read)


def convolution() -> Keeps:
    """Read the short convolution of LFM2, which has ``hidden_size`` channels."""

    def read(config: Fields) -> Layers:
        channels = config.count("conv_dim", "hidden_size")
        return arithmetic.short_convolution(
            1, channels=channels, kernel=config.count("conv_L_cache", least=2)
        )

    return Reader(frozenset({"conv_dim", "hidden_size", "conv_L_cache", "conv_dim_out"}), read)


def recurrence() -> Keeps:
    """Read the RG-LRU (gated linear recurrence) of RecurrentGemma."""

    def read(config: Fields) -> Layers:
        return arithmetic.gated_linear_recurrence(
            1, width=config.count("lru_width", "hidden_size"), kernel=config.count("conv1d_width")
        )

    return Reader(frozenset({"lru_width", "hidden_size", "conv1d_width"}), read)
