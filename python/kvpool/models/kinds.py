"""Reads the kind of each layer of a model from the various forms that configurations have.

A :class:`Reader` reads one property from a configuration, and lists the names of all fields that can
change it. The readers here return the kind of every layer: ``full``, ``sliding``, ``linear``, ``mamba``
and so on. A family of :mod:`kvpool.models.families` then defines how much KV a layer of each kind
keeps.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from kvpool.models.fields import MOST_LAYERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvpool.models.fields import Fields

__all__ = [
    "LAYERS",
    "Reader",
    "all_of",
    "chosen",
    "every",
    "first_given",
    "gemma_windows",
    "letters",
    "listed",
    "marked",
    "period",
    "qwen_windows",
    "repeated",
    "shared_tail",
    "twice",
]

Answer_co = TypeVar("Answer_co", covariant=True)

#: Field names that families use for the number of layers.
LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


@dataclasses.dataclass(frozen=True, slots=True)
class Reader(Generic[Answer_co]):
    """Reads one property from a configuration.

    Attributes:
        names: The fields that can change the result.
        read: The function. It raises :class:`~kvpool.errors.ModelConfigError`, which names a field.
    """

    names: frozenset[str]
    read: Callable[[Fields], Answer_co]


#: A reader of a configuration that returns the kind of every layer.
Kinds = Reader[list[str]]

#: The kinds for the values of ``layer_types``, in the spellings of transformers 4 and 5.
_WORDS: Final = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "sliding_window": "sliding",
    "chunked_attention": "chunked",
}


def _number(config: Fields) -> int:
    return config.count(*LAYERS, most=MOST_LAYERS)


def all_of(kind: str) -> Kinds:
    """Return a reader for models in which every layer has the same kind."""
    return Reader(frozenset(LAYERS), lambda config: [kind] * _number(config))


def listed(name: str, more: Mapping[str, str] | None = None, *, longer: bool = False) -> Kinds:
    """Read a list that contains one word per layer.

    Args:
        name: The field.
        more: The kinds for further words, in addition to those of attention.
        longer: Whether to ignore entries after the last layer. Some checkpoints of one family have such
            entries.
    """
    words = {**_WORDS, **(more or {})}

    def read(config: Fields) -> list[str]:
        types = config.items(name)
        if any(config.has(one) for one in LAYERS):
            layers = _number(config)
            types = types[:layers] if longer else types
            if len(types) != layers:
                raise config.refused(
                    name, f"{layers:,} entries, as there are layers; there are {len(types):,}"
                )
        unknown = [one for one in types if not isinstance(one, str) or one not in words]
        if unknown:
            raise config.refused(name, f"of {', '.join(words)}", unknown[0])
        return [words[one] for one in types]

    return Reader(frozenset({name, *LAYERS}), read)


def letters(name: str, kinds: Mapping[str, str]) -> Kinds:
    """Return a reader of a text in which each letter is the kind of one layer."""

    def read(config: Fields) -> list[str]:
        pattern = config.text(name).replace("|", "")
        if not 1 <= len(pattern) <= MOST_LAYERS:
            raise config.refused(name, f"a letter per layer, 1 to {MOST_LAYERS:,}")
        unknown = [letter for letter in pattern if letter not in kinds]
        if unknown:
            raise config.refused(name, f"of the letters {' '.join(kinds)}", unknown[0])
        if any(config.has(one) for one in LAYERS) and _number(config) != len(pattern):
            raise config.refused(
                name, f"{_number(config):,} letters, as there are layers; there are {len(pattern):,}"
            )
        return [kinds[letter] for letter in pattern]

    return Reader(frozenset({name, *LAYERS}), read)


def every(
    name: str, last: str, others: str, *, default: int = 0, whole: bool = False, first: bool = False
) -> Kinds:
    """Assign one kind to every n-th layer.

    Args:
        name: The field that contains n; empty if n is always ``default``.
        last: The kind of the last of each n layers.
        others: The kind of the n - 1 layers before it.
        default: n if the field is absent. With 0, the field is required.
        whole: Whether the number of layers must be a multiple of n. Use it if engines differ in the
            kind of the remaining layers.
        first: Whether the first of each n layers has the kind ``last``, instead of the last one.
    """

    def read(config: Fields) -> list[str]:
        layers = _number(config)
        step = config.count(name, most=MOST_LAYERS) if name and (config.has(name) or not default) else default
        if whole and layers % step:
            raise config.refused(
                name, f"a divisor of the {layers:,} layers: engines differ in what the rest is"
            )
        return [last if (at + (0 if first else 1)) % step == 0 else others for at in range(layers)]

    return Reader(frozenset({name, *LAYERS} - {""}), read)


def period(every_name: str, offset_name: str, chosen_kind: str, others: str) -> Kinds:
    """Assign one kind to one layer of each period. Its position in the period is given by an offset."""

    def read(config: Fields) -> list[str]:
        step = config.count(every_name)
        offset = config.count(offset_name, least=0, most=step - 1)
        return [chosen_kind if at % step == offset else others for at in range(_number(config))]

    return Reader(frozenset({every_name, offset_name, *LAYERS}), read)


def chosen(name: str, kind: str, others: str, *, base: int = 0, inside: str = "") -> Kinds:
    """Read a list of the numbers of the layers that have one kind.

    Args:
        name: The field.
        kind: The kind of the layers in the list.
        others: The kind of all other layers.
        base: The number of the first layer in this list: 0 or 1.
        inside: The object that contains the field; empty for the configuration itself.
    """

    def read(config: Fields) -> list[str]:
        layers, place = _number(config), config.inner(inside) if inside else config
        if not place.has(name):
            raise place.refused(name, "a list of layers")
        places = place.items(name, least=0)
        wrong = [at for at in places if not _whole(at) or not base <= at < layers + base]
        if wrong:
            raise place.refused(name, f"of layers, {base} to {layers + base - 1:,}", wrong[0])
        return [kind if at in set(places) else others for at in range(base, layers + base)]

    return Reader(frozenset({inside or name, *LAYERS}), read)


def marked(name: str, kinds: Mapping[int, str]) -> Kinds:
    """Read a list with one number per layer."""

    def read(config: Fields) -> list[str]:
        marks, layers = config.items(name), _number(config)
        wrong = [mark for mark in marks if not _whole(mark) or mark not in kinds]
        if wrong:
            raise config.refused(name, f"of {' and '.join(map(str, kinds))}", wrong[0])
        if len(marks) != layers:
            raise config.refused(name, f"{layers:,} entries, as there are layers")
        return [kinds[mark] for mark in marks]

    return Reader(frozenset({name, *LAYERS}), read)


def repeated(name: str, words: Mapping[str, str]) -> Kinds:
    """Read a list of words, one per layer.

    A list that is too short is repeated until every layer has a word.
    """

    def read(config: Fields) -> list[str]:
        types = config.items(name)
        unknown = [one for one in types if not isinstance(one, str) or one not in words]
        if unknown:
            raise config.refused(name, f"of {', '.join(words)}", unknown[0])
        return [words[types[at % len(types)]] for at in range(_number(config))]

    return Reader(frozenset({name, *LAYERS}), read)


def first_given(*choices: Kinds | tuple[str, Kinds]) -> Kinds:
    """Use the first reader whose field is present. If no field is present, use the last reader.

    An empty list counts as absent. Each choice is the name of a field and its reader. The last choice
    may be a reader without a name.
    """

    def read(config: Fields) -> list[str]:
        for one in choices:
            if isinstance(one, Reader):
                return one.read(config)
            if config.has_entries(one[0]):
                return one[1].read(config)
        name = choices[0][0] if isinstance(choices[0], tuple) else ""
        raise config.refused(name, "there: which layer is of which kind")

    readers = [one if isinstance(one, Reader) else one[1] for one in choices]
    return Reader(frozenset().union(*(one.names for one in readers)), read)


def qwen_windows() -> Kinds:
    """Read the windows of Qwen.

    If ``use_sliding_window`` is true, the layers starting with number ``max_window_layers`` have
    windows.
    """

    def read(config: Fields) -> list[str]:
        layers = _number(config)
        if not config.flag("use_sliding_window", default=False) or not config.has("sliding_window"):
            return ["full"] * layers
        first = config.count("max_window_layers", least=0, most=MOST_LAYERS)
        return ["full" if at < first else "sliding" for at in range(layers)]

    names = {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types", *LAYERS}
    return first_given(("layer_types", listed("layer_types")), Reader(frozenset(names), read))


def gemma_windows(
    default: int, *names: str, first: bool = False, more: Mapping[str, str] | None = None
) -> Kinds:
    """Assign windows to all layers except every n-th.

    ``layer_types`` decides; without it, n is in one of the fields, or is the family's default.
    """
    patterns = [(name, every(name, "full", "sliding", first=first)) for name in names]
    return first_given(
        ("layer_types", listed("layer_types", more)),
        *patterns,
        every("", "full", "sliding", default=default, first=first),
    )


def shared_tail(kinds: Kinds, name: str = "num_kv_shared_layers") -> Kinds:
    """Leave out the last layers, because they read the KV of other layers and keep none."""

    def read(config: Fields) -> list[str]:
        own = kinds.read(config)
        shared = config.count(name, least=0, most=len(own) - 1) if config.has(name) else 0
        return own[: len(own) - shared]

    return Reader(kinds.names | {name}, read)


def twice(kinds: Kinds) -> Kinds:
    """Count each layer twice, because it has two attention blocks with separate caches."""
    return Reader(kinds.names, lambda config: [kind for kind in kinds.read(config) for _ in range(2)])


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
