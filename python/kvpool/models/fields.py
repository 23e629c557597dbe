"""Reads fields of a configuration from outside.

Each field is checked when it is read, and an error contains its name.

This module owns the limits of numbers, the texts of errors, and the test whether a field's name
suggests that the field changes the layout of the KV cache. A field that is ``null`` counts as absent,
because checkpoints use ``null`` in this way.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kvpool.errors import ModelConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["MOST_LAYERS", "Fields", "words"]

MOST_LAYERS: Final = 10_000

#: The largest value of a dimension. With this limit, a product of four dimensions and the number of
#: layers remains short enough to print.
_MAX_COUNT: Final = 1 << 24

#: The largest number of characters of a value that a message shows.
_SHOWN: Final = 60


def words(text: str) -> frozenset[str]:
    """Return the words of a text, which spaces separate."""
    return frozenset(text.split())


#: If the name of a field contains one of these words, the field may describe how a model keeps tokens.
_LAYOUT: Final = words(
    "layer layers head heads kv key keys value values query queries mqa gqa mla cla yoco group "
    "groups window windows share shared sharing reuse skip conv state states latent attn "
    "attention mamba ssm block blocks cache mixer pattern gqa interval period sliding swa local "
    "global chunk chunked hybrid index indexer idx idxs indices compress compressed compression "
    "ratio ratios linear recurrent recurrence recurrences recursion lru rwkv kda gdn hyena "
    "lightning delta memory mem sink sinks kernel stride types sparse dsa nsa csa hca cross nope "
    "retention loop loops ut cycles repeat repeats depth stack stacks steps passes iterations "
    "encoder decoder"
)

#: If the name contains one of these words, the field concerns another part of a model, or its
#: arithmetic.
_OTHER: Final = words(
    "moe expert experts router mlp ffn ff mtp nextn eagle medusa draft vision visual image "
    "images img video audio speech mm vit projector norm norms layernorm layernorms normalization "
    "rmsnorm rms ln dropout pdrop classification "
    "bias quantization init initializer embedding embeddings embed gate gating scale scaling "
    "multiplier softcapping temperature impl implementation flash kernels dropouts sdpa loss aux "
    "token eps epsilon clip beam multipliers"
)

#: Field names that suggest a layout of the KV cache, but do not describe one in any family.
_NO_LAYOUT: Final = words(
    "use_cache output_hidden_states output_attentions is_decoder add_cross_attention "
    "cross_attention_hidden_size chunk_size_feed_forward pruned_heads tie_encoder_decoder "
    "encoder_no_repeat_ngram_size num_return_sequences is_encoder_decoder cache_implementation "
    "gradient_checkpointing return_dict query_pre_attn_scalar head_dtype first_k_dense_replace "
    "decoder_sparse_step n_group topk_group num_expert_group parallel_attn "
    "decoder_start_token_id use_parallel_residual attention_softmax_in_fp32 "
    "reorder_and_upcast_attn scale_attn_weights rope_local_base_freq shared_intermediate_size "
    "use_bidirectional_attention compression_config use_parallel_block"
)


class Fields:
    """A JSON object inside a model's configuration, with its path for error messages."""

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise ModelConfigError(
                f"{path or 'the file'} is {_brief(value)}: must be an object", path or None
            )
        self._values: dict[str, Any] = value
        self._path = path

    def with_defaults(self, defaults: Mapping[str, Any]) -> Fields:
        """Return a copy in which absent fields have default values.

        A field that is ``null`` remains ``null``.

        If a default is a text, it names another field, and the value of that field is used.
        """
        values = {**defaults, **self._values}
        same = {
            name: values[one]
            for name, one in defaults.items()
            if isinstance(one, str) and name not in self._values
        }
        return Fields({**values, **same}, self._path)

    def replaced(self, name: str, value: object) -> Fields:
        """Return a copy of this object in which one field has another value."""
        return Fields({**self._values, name: value}, self._path)

    def require_known(self, known: Collection[str], family: str) -> None:
        """Raise if there is a field whose name suggests a layout and which is not in ``known``.

        Raises:
            ModelConfigError: There is such a field.
        """
        windows = {"use_sliding_window", "sliding_window", "max_window_layers"}
        off = (
            windows if self._values.get("use_sliding_window") is False and not windows & set(known) else set()
        )
        for name in self._values:
            if name not in known and name not in off and self.has(name) and suggests_layout(name):
                expected = f"absent: the name suggests a layout that kvpool does not know for {family}"
                raise self.refused(name, expected)

    def require_present(self, numbers: Mapping[str, int]) -> None:
        """Raise if a field is absent for which absence and ``null`` mean different things.

        Args:
            numbers: These fields, and the value that the family's class uses if the field is absent.

        Raises:
            ModelConfigError: A field is absent.
        """
        for name, number in numbers.items():
            if name not in self._values:
                where = self._where(name)
                message = f"{where} is missing: must be there, or null (absent means {number:,} here)"
                raise ModelConfigError(message, where)

    def has(self, name: str) -> bool:
        """Return whether the configuration has a field with a value other than ``null``."""
        return self._values.get(name) is not None

    def inner(self, name: str) -> Fields:
        """Return the object in a field."""
        return Fields(self._values.get(name), self._where(name))

    def entry(self, name: str, at: int) -> Fields:
        """Return the object in an entry of a list."""
        return Fields(self.items(name)[at], f"{self._where(name)}[{at}]")

    def is_list(self, name: str) -> bool:
        """Return whether a field is a list."""
        return isinstance(self._values.get(name), list)

    def count(self, *names: str, least: int = 1, most: int = _MAX_COUNT) -> int:
        """Return the whole number in the first field of ``names`` that is present."""
        name = next((name for name in names if self.has(name)), None)
        if name is None:
            raise ModelConfigError(f"{self._where(names[0])} is missing", self._where(names[0]))
        value = self._values[name]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.refused(name, f"a whole number, {least:,} to {most:,}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a field that is true or false."""
        if not self.has(name):
            return default
        if not isinstance(self._values[name], bool):
            raise self.refused(name, "true or false")
        return bool(self._values[name])

    def text(self, name: str) -> str:
        """Return the text in a field; empty if it is absent."""
        if not self.has(name):
            return ""
        if not isinstance(self._values[name], str):
            raise self.refused(name, "a text")
        return str(self._values[name])

    def raw(self, name: str) -> object:
        """Return the value of a field, unchecked; ``None`` if it is absent."""
        return self._values.get(name)

    def names(self) -> list[str]:
        """Return the names of all fields."""
        return list(self._values)

    def is_object(self, name: str) -> bool:
        """Return whether a field is an object."""
        return isinstance(self._values.get(name), dict)

    def texts(self, name: str) -> list[str]:
        """Return the list of texts in a field."""
        values = self.items(name, least=0)
        wrong = [one for one in values if not isinstance(one, str)]
        if wrong:
            raise self.refused(name, "of texts", wrong[0])
        return values

    def has_entries(self, name: str) -> bool:
        """Return whether a field is present and not an empty list."""
        return self.has(name) and self._values[name] != []

    def is_text(self, name: str, text: str) -> bool:
        """Return whether the value of a field equals the given text."""
        return bool(self._values.get(name) == text)

    def zero(self, name: str) -> bool:
        """Return whether a field is absent, or 0."""
        return not self.has(name) or self._values[name] == 0

    def items(self, name: str, *, least: int = 1) -> list[Any]:
        """Return a list with at most one entry per layer."""
        value = self._values.get(name)
        if not isinstance(value, list) or not least <= len(value) <= MOST_LAYERS:
            raise self.refused(name, f"a list with an entry per layer, 1 to {MOST_LAYERS:,}")
        return value

    def dtype_bytes(self, *names: str, default: int) -> int:
        """Return the bytes per element of the dtype that the first present field names."""
        sizes = {"float32": 4, "fp32": 4, "bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "half": 2}
        for name in names:
            if self.has(name):
                text = self.text(name).removeprefix("torch.").lower()
                if text in {"", "auto"}:
                    return default
                if text not in sizes:
                    raise self.refused(name, f"one of {', '.join(sizes)}")
                return sizes[text]
        return default

    def refused(self, name: str, expected: str, *entry: object) -> ModelConfigError:
        """Return the error about the value of a field, or about one entry of a list in it."""
        value, verb = (entry[0], "has") if entry else (self._values.get(name), "is")
        return ModelConfigError(
            f"{self._where(name)} {verb} {_brief(value)}: must be {expected}", self._where(name)
        )

    def _where(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def suggests_layout(name: str) -> bool:
    """Return whether the name of a field suggests that it changes the size of a token in the KV cache.

    >>> names = "cla_share_factor", "vocab_size", "num_kv_heads", "moe_layer_freq"
    >>> [name for name in names if suggests_layout(name)]
    ['cla_share_factor', 'num_kv_heads']
    """
    if name in _NO_LAYOUT:
        return False
    parts = set(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))
    return bool(parts & _LAYOUT) and not parts & _OTHER


def _brief(value: object) -> str:
    """Return a short text for a value of any size."""
    if isinstance(value, dict):
        return f"an object of {len(value):,} fields"
    if isinstance(value, list):
        return f"a list of {len(value):,} entries"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**_SHOWN:
        return f"a number of more than {_SHOWN} digits"
    text = "null" if value is None else repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
