"""Families of models, and readers of configurations that only one family needs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from kvpool.models import keeps as keep
from kvpool.models.fields import MOST_LAYERS
from kvpool.models.kinds import LAYERS, Reader, chosen, listed
from kvpool.models.layers import Layers, attention

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvpool.models.fields import Fields

__all__ = [
    "Family",
    "by_kind",
    "cross_layer",
    "falcon_heads",
    "gemma4_full",
    "indexed",
    "kimi_layers",
    "mistral_params",
    "mistral_windows",
    "mpt_heads",
    "nas_blocks",
    "other_setting",
    "per_layer_heads",
    "plamo_steps",
    "projection_groups",
    "single_head",
    "smollm_layers",
    "switched_windows",
]

#: Reads the layers of a model: one entry per layer. Layers that keep no KV have no entry.
AllLayers = Reader[list[Layers]]

_ORDER: Final = ("full", "sliding", "chunked", "state")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Models whose configurations have the same fields with the same meaning."""

    name: str
    #: Values of ``model_type``, and names of architectures without their endings, in lower case.
    types: tuple[str, ...]
    #: Reads the layers of a configuration of this family.
    layers: AllLayers
    #: The published files that define the fields. ``{type}`` stands for the ``model_type``.
    source: str
    #: Fields whose names suggest a layout, but which do not change the cache.
    ignored: frozenset[str] = frozenset()
    #: Maps a ``model_type`` to the fields that a nested configuration leaves out, and to their values,
    #: which are the defaults of the family's class.
    defaults: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def read(self, config: Fields) -> tuple[Layers, ...]:
        """Read the layers of a configuration. Equal layers are merged.

        Raises:
            ModelConfigError: A field is missing or wrong, or suggests a layout that the family does not
                have.
        """
        config.require_known(self.layers.names | self.ignored, self.name)
        counts: dict[Layers, int] = {}
        for one in self.layers.read(config):
            counts[one] = counts.get(one, 0) + 1
        merged = [dataclasses.replace(one, count=count) for one, count in counts.items()]
        return tuple(sorted(merged, key=lambda one: _ORDER.index(one.kind)))


def by_kind(kinds: Reader[list[str]], **keeps: Reader[Layers] | tuple[Reader[Layers], ...]) -> AllLayers:
    """Read the kind of every layer, and for each kind the KV that a layer keeps.

    An empty tuple means that layers of the kind keep none.
    """
    readers = {kind: (some,) if isinstance(some, Reader) else some for kind, some in keeps.items()}

    def read(config: Fields) -> list[Layers]:
        found = kinds.read(config)
        kept = {kind: [one.read(config) for one in readers[kind]] for kind in dict.fromkeys(found)}
        return [one for kind in found for one in kept[kind]]

    names = frozenset().union(*(one.names for some in readers.values() for one in some))
    return Reader(kinds.names | names, read)


def mistral_windows() -> Reader[list[str]]:
    """Read the windows of Mistral. Without ``layer_types``, every layer has one if a window is given."""
    types = listed("layer_types")

    def read(config: Fields) -> list[str]:
        if config.has_entries("layer_types"):
            return types.read(config)
        return ["sliding" if config.has("sliding_window") else "full"] * config.count(
            *LAYERS, most=MOST_LAYERS
        )

    return Reader(types.names | {"sliding_window"}, read)


def switched_windows(first: str) -> Reader[list[str]]:
    """Read the windows of the family dots: all layers starting with number ``first`` have one."""
    types = listed("layer_types")

    def read(config: Fields) -> list[str]:
        layers = config.count(*LAYERS, most=MOST_LAYERS)
        if config.has_entries("layer_types"):
            return types.read(config)
        if not config.has("sliding_window") or not config.flag("use_sliding_window", default=True):
            return ["full"] * layers
        begin = config.count(first, least=0, most=MOST_LAYERS)
        return ["full" if at < begin else "sliding" for at in range(layers)]

    return Reader(types.names | {"sliding_window", "use_sliding_window", first}, read)


def smollm_layers() -> Reader[list[str]]:
    """Read SmolLM3: full attention in all layers, unless ``use_sliding_window`` is true.

    In that case, ``layer_types`` is required.
    """
    types = listed("layer_types")

    def read(config: Fields) -> list[str]:
        if config.has_entries("layer_types"):
            return types.read(config)
        if config.flag("use_sliding_window", default=False):
            raise config.refused("layer_types", "there where use_sliding_window is on")
        return ["full"] * config.count(*LAYERS, most=MOST_LAYERS)

    return Reader(types.names | {"use_sliding_window", "sliding_window", "max_window_layers"}, read)


def cross_layer() -> Reader[list[str]]:
    """Read the layers of Hunyuan.

    If ``use_cla`` is true, each run of ``cla_share_factor`` neighbouring layers shares the cache of its
    first layer.
    """

    def read(config: Fields) -> list[str]:
        layers = config.count(*LAYERS, most=MOST_LAYERS)
        if config.flag("use_mla", default=False):
            raise config.refused("use_mla", "false: latents of this family have no shape here")
        if not config.flag("use_cla", default=False):
            return ["full"] * layers
        return ["full"] * -(-layers // config.count("cla_share_factor"))

    latents = {"use_mla", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"}
    return Reader(frozenset({"use_cla", "cla_share_factor", *latents, *LAYERS}), read)


def indexed() -> Reader[list[str]]:
    """Read sparse MLA: a layer with its own index is ``full``, one that uses another's is ``shared``."""
    words = {"deepseek_sparse_attention": "full", "indexed_attention": "full"}
    types = listed("layer_types", words)
    owners = listed("indexer_types", {"full": "full", "shared": "shared"})

    def read(config: Fields) -> list[str]:
        if config.has_entries("layer_types"):
            wrong = [kind for kind in types.read(config) if kind != "full"]
            if wrong:
                raise config.refused("layer_types", "of sparse attention in every layer", wrong[0])
        if config.has_entries("indexer_types"):
            return owners.read(config)
        layers = config.count(*LAYERS, most=MOST_LAYERS)
        if config.has("index_topk_pattern"):
            pattern = config.text("index_topk_pattern")
            if len(pattern) != layers or set(pattern) - {"F", "S"}:
                raise config.refused("index_topk_pattern", f"{layers:,} letters F or S")
            return ["full" if letter == "F" else "shared" for letter in pattern]
        if config.has("index_topk_freq"):
            step = config.count("index_topk_freq")
            offset = (
                config.count("index_skip_topk_offset", least=0) if config.has("index_skip_topk_offset") else 2
            )
            return ["full" if max(at - offset + 1, 0) % step == 0 else "shared" for at in range(layers)]
        return ["full"] * layers

    more = {"index_topk_pattern", "index_topk_freq", "index_skip_topk_offset"}
    return Reader(types.names | owners.names | more, read)


def plamo_steps() -> Reader[list[str]]:
    """Read PLaMo 2: of each ``mamba_step`` consecutive layers, the middle one has attention."""

    def read(config: Fields) -> list[str]:
        layers = config.count(*LAYERS, most=MOST_LAYERS)
        if not config.flag("mamba_enabled", default=True):
            return ["full"] * layers
        step = config.count("mamba_step", least=2)
        if layers <= step // 2:
            return ["mamba"] * (layers - 1) + ["full"]
        return ["full" if at % step == step // 2 else "mamba" for at in range(layers)]

    return Reader(frozenset({"mamba_enabled", "mamba_step", *LAYERS}), read)


def falcon_heads() -> Reader[Layers]:
    """Read Falcon: one KV head if ``multi_query`` is true, otherwise ``num_kv_heads``.

    In the new decoder architecture, ``num_kv_heads`` is used in any case.
    """
    many = keep.heads(
        kv=("num_kv_heads", "n_head_kv"), query=("num_attention_heads", "n_head"), equal=True, dim=()
    )
    flags = ("multi_query", "new_decoder_architecture")

    def read(config: Fields) -> Layers:
        if not config.has("multi_query"):
            raise config.refused("multi_query", "true or false")
        found = many.read(config)
        if config.flag("multi_query", default=True) and not config.flag(
            "new_decoder_architecture", default=False
        ):
            return attention(1, 1, found.dims[0])
        return found

    return Reader(many.names | set(flags), read)


def single_head(flag: str, number: str = "", **fields: Any) -> Reader[Layers]:
    """Read a family in which ``flag`` selects a single KV head, or the number in the field ``number``.

    If the flag is false, each attention head has its own KV head.
    """
    many = keep.heads(kv=(), equal=True, **({"dim": ()} | fields))

    def read(config: Fields) -> Layers:
        found = many.read(config)
        if not config.has(flag):
            raise config.refused(flag, "true or false")
        if not config.flag(flag, default=False):
            return found
        return attention(1, config.count(number) if number else 1, found.dims[0])

    return Reader(many.names | {flag, number} - {""}, read)


def other_setting(*, groups: tuple[str, ...], dim: str) -> Reader[Layers]:
    """Read Step 3.5: the layers with windows may have another number and size of KV heads.

    The object ``attention_other_setting`` contains these.

    Args:
        groups: The fields with the number of KV heads of a layer without windows.
        dim: The field with the number of elements of a head.
    """
    other = "attention_other_setting"
    known = {"attention_type", "num_attention_heads", "true_head_dim", *groups, dim}

    def read(config: Fields) -> Layers:
        inner = config.inner(other) if config.has(other) else config
        if inner is not config:
            inner.require_known(known, "Step 3.5")
            if inner.has("attention_type") and inner.text("attention_type") != "sliding_attention":
                raise inner.refused("attention_type", "sliding_attention")
        kv_heads = (inner if any(inner.has(name) for name in groups) else config).count(*groups)
        head_dim = (inner if inner.has(dim) else config).count(dim)
        return attention(1, kv_heads, head_dim, window=config.count("sliding_window", most=1 << 40))

    return Reader(frozenset({*groups, dim, "sliding_window", other}), read)


def kimi_layers() -> Reader[list[str]]:
    """Read the kinds of layers of Kimi Linear.

    ``linear_attn_config`` lists the layers of both kinds, numbered from 1. Newer files have
    ``layer_types`` instead.
    """
    inside = "linear_attn_config"
    full = chosen("full_attn_layers", "full", "linear", base=1, inside=inside)
    linear = chosen("kda_layers", "linear", "full", base=1, inside=inside)
    types = listed("layer_types", {"linear_attention": "linear"})

    def read(config: Fields) -> list[str]:
        if not config.has(inside):
            return types.read(config)
        kinds = full.read(config)
        if config.inner(inside).has("kda_layers") and linear.read(config) != kinds:
            raise config.inner(inside).refused("kda_layers", "all layers that full_attn_layers does not have")
        return kinds

    return Reader(full.names | types.names, read)


def mpt_heads() -> Reader[Layers]:
    """Read MPT: ``attn_config`` contains the kind of attention and the number of KV heads."""
    all_heads = keep.heads(kv=(), equal=True, query=("n_heads",), hidden=("d_model",), dim=())
    known = {"attn_type", "kv_n_heads", "attn_uses_sequence_id", "prefix_lm", "softmax_scale"}

    def read(config: Fields) -> Layers:
        found = all_heads.read(config)
        if not config.has("attn_config"):
            return found
        inner = config.inner("attn_config")
        inner.require_known(known, "MPT")
        kind = inner.text("attn_type") or "multihead_attention"
        if kind == "multihead_attention":
            return found
        if kind == "multiquery_attention":
            return attention(1, 1, found.dims[0])
        if kind == "grouped_query_attention":
            return attention(1, inner.count("kv_n_heads"), found.dims[0])
        raise inner.refused(
            "attn_type", "multihead_attention, multiquery_attention or grouped_query_attention"
        )

    return Reader(all_heads.names | {"attn_config"}, read)


def gemma4_full() -> Reader[Layers]:
    """Read Gemma 4: full-attention heads have ``global_head_dim`` elements.

    If keys equal values, these layers also have their own number of KV heads.
    """
    dim = ("global_head_dim",)
    own = keep.heads(kv=("num_global_key_value_heads", "num_key_value_heads"), dim=dim, quotient=False)
    same = keep.heads(dim=dim, quotient=False)

    def read(config: Fields) -> Layers:
        return (own if config.flag("attention_k_eq_v", default=False) else same).read(config)

    return Reader(own.names | {"attention_k_eq_v"}, read)


def projection_groups() -> Reader[Layers]:
    """Read StripedHyena: the attention heads divided by ``proj_groups`` are the KV heads."""
    all_heads = keep.heads(kv=(), equal=True, dim=())

    def read(config: Fields) -> Layers:
        found, number = all_heads.read(config), config.count("num_attention_heads")
        groups = config.count("proj_groups")
        if number % groups:
            raise config.refused("proj_groups", f"a divisor of the {number} attention heads")
        return attention(1, number // groups, found.dims[0])

    return Reader(all_heads.names | {"proj_groups"}, read)


def per_layer_heads(name: str, layers_name: str = "num_hidden_layers") -> AllLayers:
    """Read a list with the number of KV heads of each layer (DeciLM, OpenELM)."""
    one = keep.heads(kv=(name,))

    def read(config: Fields) -> list[Layers]:
        numbers, layers = config.items(name), config.count(layers_name, most=MOST_LAYERS)
        if len(numbers) != layers:
            raise config.refused(name, f"{layers:,} entries, as there are layers; there are {len(numbers):,}")
        return [one.read(config.replaced(name, number)) for number in numbers]

    return Reader(one.names | {name, layers_name}, read)


def nas_blocks() -> AllLayers:
    """Read Nemotron models from a neural architecture search.

    ``block_configs`` describes the attention of each layer, which may have none.
    """
    known = {"no_op", "replace_with_linear", "n_heads_in_group"}
    off = {"num_sink_tokens", "use_prefill_window_in_sink_attention", "unshifted_sink", "sparsify"}
    one = keep.heads()

    def read(config: Fields) -> list[Layers]:
        blocks, layers = config.items("block_configs"), config.count(*LAYERS, most=MOST_LAYERS)
        if len(blocks) != layers:
            raise config.refused(
                "block_configs", f"{layers:,} entries, as there are layers; there are {len(blocks):,}"
            )
        heads, found = config.count("num_attention_heads"), []
        for at in range(layers):
            inner = config.entry("block_configs", at).inner("attention")
            inner.require_known(known | (off if not inner.has("window_length") else set()), "Nemotron NAS")
            if inner.flag("no_op", default=False) or inner.flag("replace_with_linear", default=False):
                continue
            group = inner.count("n_heads_in_group")
            if heads % group:
                raise inner.refused("n_heads_in_group", f"a divisor of the {heads} attention heads")
            found.append(one.read(config.replaced("num_key_value_heads", heads // group)))
        return found

    return Reader(one.names | {"block_configs", *LAYERS}, read)


def mistral_params() -> AllLayers:
    """Read ``params.json`` of Mistral's own releases, with key-value heads or MLA.

    ``sliding_window`` is one window for all layers, or a list that repeats over the layers.
    """
    window = keep.heads(kv=("n_kv_heads",), query=("n_heads",), hidden=("dim",), window="sliding_window")
    full = keep.heads(kv=("n_kv_heads",), query=("n_heads",), hidden=("dim",))
    compressed = keep.mla()

    def read(config: Fields) -> list[Layers]:
        layers = config.count("n_layers", most=MOST_LAYERS)
        if config.has("kv_lora_rank"):
            return [compressed.read(config)] * layers
        if not config.has("sliding_window"):
            return [full.read(config)] * layers
        if not config.is_list("sliding_window"):
            return [window.read(config)] * layers
        spans = config.items("sliding_window")
        if layers % len(spans):
            raise config.refused("sliding_window", f"a list whose length divides the {layers:,} layers")
        found = [
            full.read(config) if span is None else window.read(config.replaced("sliding_window", span))
            for span in spans
        ]
        return found * (layers // len(spans))

    return Reader(window.names | compressed.names | {"n_layers"}, read)
