"""Which layer of a model is of which kind, by its configuration.

Owns the ways in which configurations say it: a list or a string with an entry per layer, an interval, a pattern, or
nothing. The kinds are ``full``, ``sliding``, ``chunked``, ``linear``, ``mamba``, ``conv``; layers that keep nothing are
left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvpool.models.fields import MOST_LAYERS

if TYPE_CHECKING:
    from kvpool.models.fields import Fields

__all__ = ["layer_kinds"]

#: Entries of ``layer_types`` and ``layers_block_type``; ``None`` keeps nothing.
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "full_attention": ("full",),
    "attention": ("full",),
    "sliding_attention": ("sliding",),
    "sliding_window": ("sliding",),
    "chunked_attention": ("chunked",),
    "linear_attention": ("linear",),
    "mamba": ("mamba",),
    "mamba2": ("mamba",),
    "conv": ("conv",),
    "hybrid": ("full", "mamba"),
    "mlp": (),
    "moe": (),
}

#: Letters of Nemotron's ``hybrid_override_pattern``.
_LETTERS: Final[dict[str, tuple[str, ...]]] = {"M": ("mamba",), "*": ("full",), "-": (), "E": ()}

_NAMES_OF_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def layer_kinds(config: Fields) -> list[str]:
    """The kinds of all layers that keep something of their own.

    Raises:
        ModelConfigError: layers of a kind that is not known, or fields that contradict each other.

    """
    if config.has("hybrid_override_pattern"):
        return _of_pattern(config)
    for name in ("layers_block_type", "layer_types"):
        if config.has(name):
            return _of_types(config, name)
    layers = config.count(*_NAMES_OF_LAYERS, most=MOST_LAYERS)
    kinds = _of_numbers(config, layers)
    return _without_shared(config, kinds)


def _of_pattern(config: Fields) -> list[str]:
    pattern = config.text("hybrid_override_pattern").replace("|", "")
    if not 1 <= len(pattern) <= MOST_LAYERS:
        raise config.refused("hybrid_override_pattern", f"a letter per layer, 1 to {MOST_LAYERS:,}")
    unknown = [letter for letter in pattern if letter not in _LETTERS]
    if unknown:
        raise config.refused("hybrid_override_pattern", f"of the letters {' '.join(_LETTERS)}", unknown[0])
    _agrees(config, "hybrid_override_pattern", len(pattern))
    return [kind for letter in pattern for kind in _LETTERS[letter]]


def _of_types(config: Fields, name: str) -> list[str]:
    types = config.items(name)
    unknown = [one for one in types if not isinstance(one, str) or one not in _TYPES]
    if unknown:
        raise config.refused(name, f"of {', '.join(_TYPES)}", unknown[0])
    _agrees(config, name, len(types))
    # The last layers read what others keep: nothing of theirs is kept.
    own = len(types) - _shared(config, len(types))
    return [kind for one in types[:own] for kind in _TYPES[one]]


def _agrees(config: Fields, name: str, entries: int) -> None:
    """An entry for each layer."""
    if any(config.has(one) for one in _NAMES_OF_LAYERS):
        layers = config.count(*_NAMES_OF_LAYERS, most=MOST_LAYERS)
        if layers != entries:
            raise config.refused(name, f"{layers:,} entries, as there are layers; there are {entries:,}")


def _of_numbers(config: Fields, layers: int) -> list[str]:
    """Kinds by an interval, a list of places, or a pattern."""
    family = config.text("model_type")
    if config.has("linear_attn_config"):
        return _of_places(config, layers)
    if family.startswith("falcon_h1"):
        return ["full", "mamba"] * layers
    if config.has("attn_layer_period"):
        period = config.count("attn_layer_period")
        offset = config.count("attn_layer_offset", least=0, most=period - 1)
        return ["full" if at % period == offset else "mamba" for at in range(layers)]
    if config.has("full_attention_interval"):
        every = config.count("full_attention_interval")
        return ["linear" if (at + 1) % every else "full" for at in range(layers)]
    if config.has("linear_num_value_heads"):
        raise config.refused("full_attention_interval", "there, or layer_types, where layers have linear attention")
    if config.has("attention_chunk_size"):
        return _of_chunks(config, layers)
    if config.has("hybrid_layer_pattern"):
        return _of_marks(config, "hybrid_layer_pattern", layers, {0: "full", 1: "sliding"})
    if config.has("ssm_state_size") or config.has("mamba_d_state") or family.startswith("mamba"):
        if config.has("num_attention_heads"):
            raise config.refused("layers_block_type", "there: which layers are Mamba's")
        return ["mamba"] * layers
    return _of_windows(config, layers, family)


def _of_places(config: Fields, layers: int) -> list[str]:
    """Kimi Linear: the layers of full attention are listed, the first one is 1."""
    linear = config.inner("linear_attn_config")
    if not linear.has("full_attn_layers"):
        raise linear.refused("full_attn_layers", "a list of layers")
    full = linear.items("full_attn_layers")
    wrong = [at for at in full if not isinstance(at, int) or isinstance(at, bool) or not 1 <= at <= layers]
    if wrong:
        raise linear.refused("full_attn_layers", f"of layers, 1 to {layers:,}", wrong[0])
    return ["full" if at in set(full) else "linear" for at in range(1, layers + 1)]


def _of_chunks(config: Fields, layers: int) -> list[str]:
    """Llama 4: layers with position have chunks; every fourth has none of both."""
    if config.has_entries("no_rope_layers"):
        return _of_marks(config, "no_rope_layers", layers, {0: "full", 1: "chunked"})
    every = config.count("no_rope_layer_interval") if config.has("no_rope_layer_interval") else 4
    return ["chunked" if (at + 1) % every else "full" for at in range(layers)]


def _of_marks(config: Fields, name: str, layers: int, kinds: dict[int, str]) -> list[str]:
    marks = config.items(name)
    wrong = [mark for mark in marks if not isinstance(mark, int) or isinstance(mark, bool) or mark not in kinds]
    if wrong:
        raise config.refused(name, "of 0 and 1", wrong[0])
    if len(marks) != layers:
        raise config.refused(name, f"{layers:,} entries, as there are layers")
    return [kinds[mark] for mark in marks]


def _of_windows(config: Fields, layers: int, family: str) -> list[str]:
    """Windows in all layers, in a pattern, or in none."""
    if not config.has("sliding_window") or not config.flag("use_sliding_window", default=True):
        return ["full"] * layers
    if config.has("max_window_layers") and config.has("use_sliding_window"):
        first = config.count("max_window_layers", least=0, most=MOST_LAYERS)
        return ["full" if at < first else "sliding" for at in range(layers)]
    every = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2, "cohere2": 4}.get(family)
    for name in ("sliding_window_pattern", "_sliding_window_pattern"):
        if config.has(name):
            every = config.count(name, most=MOST_LAYERS)
    if every is None:
        return ["sliding"] * layers
    return ["sliding" if (at + 1) % every else "full" for at in range(layers)]


def _shared(config: Fields, layers: int) -> int:
    """Layers at the end that read what others keep (Gemma 3n, small Gemma 4)."""
    return config.count("num_kv_shared_layers", least=0, most=layers - 1) if config.has("num_kv_shared_layers") else 0


def _without_shared(config: Fields, kinds: list[str]) -> list[str]:
    return kinds[: len(kinds) - _shared(config, len(kinds))]
