"""Reads the format of the KV cache from a checkpoint's quantization settings.

Engines use this format unless the caller gives another one. kvpool reads ``kv_cache_scheme`` of
compressed-tensors and of ModelOpt, and ``kv_cache_quant_algo`` of ModelOpt. These fields are in
``config.json`` or in ``hf_quant_config.json``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvpool.models.fields import Fields

__all__ = ["stored_dtype"]

_ALGORITHMS: Final = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4", "int8": "int8", "none": None}
_KNOWN: Final = ("kv_cache_scheme", "kv_cache_quant_algo")
_SELF: Final = "known to kvpool; give the dtype of the cache yourself"


def stored_dtype(top: Fields, config: Fields, beside: Fields | None) -> str | None:
    """Return the format that the quantization names, or ``None`` if it names none.

    Args:
        top: The whole configuration.
        config: The part of it that generates text.
        beside: The content of ``hf_quant_config.json``, or ``None``.

    Raises:
        ModelConfigError: kvpool does not know the format. The error names its field.
    """
    for part in (top, config):
        for name in ("quantization_config", "compression_config", "quantization"):
            if part.has(name) and not part.is_text(name, ""):
                return _of(part.inner(name))
    return None if beside is None else _of(beside)


def _of(place: Fields) -> str | None:
    if place.is_object("quantization"):
        found = _of(place.inner("quantization"))
        if found is not None:
            return found
    for name in place.names():
        off = place.raw(name) in (None, False, [], {})
        if name not in _KNOWN and "kv_cache" in name and not off:
            raise place.refused(name, _SELF)
    if place.has("kv_cache_scheme"):
        return _of_scheme(place)
    if place.has("kv_cache_quant_algo"):
        name = place.text("kv_cache_quant_algo").lower()
        if name not in _ALGORITHMS:
            raise place.refused("kv_cache_quant_algo", f"one of {', '.join(_ALGORITHMS)}; or {_SELF}")
        return _ALGORITHMS[name]
    return None


def _of_scheme(place: Fields) -> str | None:
    if not place.is_object("kv_cache_scheme"):
        name = place.text("kv_cache_scheme").lower()
        if name not in _ALGORITHMS:
            raise place.refused("kv_cache_scheme", _SELF)
        return _ALGORITHMS[name]
    scheme = place.inner("kv_cache_scheme")
    bits, kind = scheme.count("num_bits"), scheme.text("type") or "int"
    names = {(8, "float"): "fp8_e4m3", (4, "float"): "nvfp4", (8, "int"): "int8"}
    if (bits, kind) not in names:
        raise scheme.refused("num_bits", f"8, or 4 of type float; the type is {kind!r}; else {_SELF}")
    return names[bits, kind]
