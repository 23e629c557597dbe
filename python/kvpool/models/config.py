"""Reads a model's shape from a Hugging Face ``config.json``, or from Mistral's ``params.json``.

The field ``model_type`` or ``architectures`` names the model's family. The family defines the meaning
of the other fields (:mod:`kvpool.models.table`), and :mod:`kvpool.models.layers` computes the sizes.
The reader never guesses. It raises :class:`~kvpool.errors.ModelConfigError`, with the name of the
field, in these cases:

- an unknown family, or a layer of an unknown kind.
- a missing field, a value of a wrong type or out of range.
- a field that the family does not define, if its name suggests that it changes the layout of the cache

Files come from outside, so their size and values are limited: at most 16 MiB, numbers at most 2**24
(window and chunk lengths 2**40), and at most 10,000 layers. Costs: O(file).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvpool.errors import ModelConfigError
from kvpool.models.defaults import VALUES_IF_ABSENT
from kvpool.models.fields import Fields
from kvpool.models.parts import text_part
from kvpool.models.quantized import stored_dtype
from kvpool.models.shape import KvShape
from kvpool.models.table import family_of

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["parse_config", "read_config"]

_MOST_BYTES: Final = 16 << 20

#: The largest number of characters of a model's name that are used.
_MOST_NAME: Final = 200


def read_config(path: str | PathLike[str], dtype: str | None = None) -> KvShape:
    """Read the shape of a model from its ``config.json``, or from the folder that contains it.

    If the configuration itself has no quantization, a file ``hf_quant_config.json`` in the same folder
    is read, too.

    Args:
        path: The file, or its folder. A folder without ``config.json`` may contain Mistral's
            ``params.json`` instead.
        dtype: The format of the cache. With ``None``, the format that the configuration names is used,
            or bf16 if it names none.

    Raises:
        ModelConfigError: The file is not a model's configuration, or describes layers that kvpool does
            not know. The attribute ``field`` contains the wrong field.
        ValueError: ``dtype`` is unknown, or does not exist for the model.
        OSError: The file cannot be read.

    """
    path = Path(path)
    if path.is_dir():
        path /= (
            "config.json"
            if (path / "config.json").exists() or not (path / "params.json").exists()
            else "params.json"
        )
    data = _read(path)
    beside = path.with_name("hf_quant_config.json")
    quantization = _read(beside) if path.name == "config.json" and beside.is_file() else None
    try:
        return parse_config(data, dtype, quantization)
    except ModelConfigError as error:
        raise ModelConfigError(f"{path}: {error}", error.field) from None


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ModelConfigError(f"{path}: larger than {_MOST_BYTES >> 20} MiB: no {path.name} of a model")
    return data


def parse_config(
    data: bytes | str, dtype: str | None = None, quantization: bytes | str | None = None
) -> KvShape:
    """Read the shape of a model from the text of its ``config.json``.

    >>> two = '{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 64}'
    >>> parse_config(two).bytes_per_token
    2048
    >>> parse_config('{"model_type": "llama", "num_hidden_layers": "two"}')
    Traceback (most recent call last):
    ...
    kvpool.errors.ModelConfigError: num_hidden_layers is 'two': must be a whole number, 1 to 10,000

    Args:
        data: The text of the file.
        dtype: See :func:`read_config`.
        quantization: The text of ``hf_quant_config.json``, if the checkpoint has one.

    Raises:
        ModelConfigError: See :func:`read_config`.
        ValueError: See :func:`read_config`.

    """
    top = _object(data)
    config, nested = text_part(top)
    for part in (top, config):
        if part.flag("is_encoder_decoder", default=False):
            raise part.refused("is_encoder_decoder", "false: cross attention is not counted")
    family, kind = family_of(config, nested=nested)
    if nested:
        config = config.with_defaults(family.defaults.get(kind, {}))
    config.require_present(VALUES_IF_ABSENT.get(kind, {}))
    layers = family.read(config)
    if not layers:
        raise ModelConfigError("no layer keeps anything: kvpool has nothing to size", "model_type")
    shape = KvShape(_name(top, config), layers)
    if dtype is not None:
        return shape.with_dtype(dtype)
    stored = stored_dtype(top, config, None if quantization is None else _object(quantization))
    try:
        return shape.with_dtype(stored or "bf16")
    except ValueError as error:
        field = "quantization_config"
        raise ModelConfigError(f"{field}: {error}; give the dtype of the cache yourself", field) from None


def _name(top: Fields, config: Fields) -> str:
    for part, field in (
        (top, "_name_or_path"),
        (config, "_name_or_path"),
        (top, "model_type"),
        (config, "model_type"),
    ):
        if name := part.text(field).rstrip("/").rsplit("/", 1)[-1][:_MOST_NAME]:
            # The name of a shape is printed in many places, so control characters are escaped here.
            return name if name.isprintable() else repr(name)[1:-1]
    return "config.json"


def _object(data: bytes | str) -> Fields:
    try:
        return Fields(json.loads(data))
    except RecursionError:
        raise ModelConfigError("nested too deeply: no config.json of a model") from None
    except ModelConfigError:
        raise
    except ValueError as error:
        # The text is no JSON or no UTF-8, or contains a number of thousands of digits.
        raise ModelConfigError(f"no JSON: {error}") from None
