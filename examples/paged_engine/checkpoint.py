"""Provides a model's weights: seeded random weights, or a local checkpoint in Hugging Face's Llama format.

A checkpoint is a directory with ``config.json``, ``*.safetensors``, and optionally ``tokenizer.json``.
Everything is computed in float32. If a checkpoint has settings that the model does not support (other
rotary scalings, sliding windows, quantization), it is refused. Otherwise the model would run, but with
wrong results.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

__all__ = [
    "AsciiTokenizer",
    "ByteTokenizer",
    "CheckpointError",
    "LayerWeights",
    "ModelConfig",
    "Tokenizer",
    "Weights",
    "load_checkpoint",
    "random_weights",
]


class CheckpointError(ValueError):
    """The model cannot use the checkpoint. The message states the reason."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of a Llama-type model.

    The defaults are those of the small model with random weights, which has three million parameters.
    """

    vocab_size: int = 96
    hidden_size: int = 256
    intermediate_size: int = 704
    num_layers: int = 4
    num_heads: int = 8
    num_kv_heads: int = 2
    head_dim: int = 32
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    #: Largest number of positions that the model supports.
    max_positions: int = 2048
    #: Ids of the tokens that end a sample.
    end_tokens: tuple[int, ...] = (95,)
    #: Whether the embedding matrix is also used for the logits.
    tied_embeddings: bool = False


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of one layer. Matrices that multiply the same input are joined into one matrix."""

    attention_norm: Tensor
    #: The joined matrices of queries, keys and values.
    qkv: Tensor
    output: Tensor
    mlp_norm: Tensor
    #: The joined matrices "gate" and "up" of the feed-forward network.
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a model."""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Tensor

    def to(self, device: str) -> Weights:
        """Returns a copy of the weights on a device."""
        layers = [
            type(layer)(*(getattr(layer, part.name).to(device) for part in dataclasses.fields(layer)))
            for layer in self.layers
        ]
        return Weights(self.embedding.to(device), layers, self.norm.to(device), self.head.to(device))


def random_weights(config: ModelConfig, seed: int = 0) -> Weights:
    """Makes random weights.

    The text that a model with these weights generates has no meaning, but the engine works as usual.
    """
    random = torch.Generator().manual_seed(seed)

    def matrix(outputs: int, inputs: int, gain: float = 1.0) -> Tensor:
        weights: Tensor = torch.randn(outputs, inputs, generator=random) * (gain * inputs**-0.5)
        return weights

    def layer() -> LayerWeights:
        size, queries = config.hidden_size, config.num_heads * config.head_dim
        return LayerWeights(
            attention_norm=torch.ones(size),
            qkv=matrix(queries + 2 * config.num_kv_heads * config.head_dim, size),
            output=matrix(size, queries),
            mlp_norm=torch.ones(size),
            gate_up=matrix(2 * config.intermediate_size, size),
            down=matrix(size, config.intermediate_size),
        )

    return Weights(
        embedding=torch.randn(config.vocab_size, config.hidden_size, generator=random),
        layers=[layer() for _ in range(config.num_layers)],
        norm=torch.ones(config.hidden_size),
        # Make some tokens more likely than others, as in a trained model.
        head=matrix(config.vocab_size, config.hidden_size, gain=2.0),
    )


def load_checkpoint(directory: Path) -> tuple[ModelConfig, Weights, Tokenizer]:
    """Loads a Llama-type checkpoint from a local directory.

    Raises:
        CheckpointError: The directory has no valid checkpoint, or the checkpoint needs features that
            the model lacks.
    """
    config = _read_config(directory)
    return config, _assemble(config, _read_tensors(directory)), _read_tokenizer(directory, config)


# Settings of config.json that change the results of a model. Each is followed by the values that
# :class:`~examples.paged_engine.model.Llama` supports.
_SUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "model_type": ("llama", "mistral"),
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "sliding_window": (None,),
    "quantization_config": (None,),
}


def _read_config(directory: Path) -> ModelConfig:
    """Reads config.json. Refuses settings that the model does not support."""
    path = directory / "config.json"
    try:
        raw = json.loads(path.read_text())
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not isinstance(raw, dict) or "model_type" not in raw:
        raise CheckpointError(f"{path}: this is no model's configuration")
    for name, allowed in _SUPPORTED.items():
        if raw.get(name, allowed[0]) not in allowed:
            values = " or ".join(json.dumps(value) for value in allowed if value is not None) or "none"
            raise CheckpointError(f"{path}: {name} is {json.dumps(raw.get(name))}; supported: {values}")
    # Since Transformers 5, the rotary settings are in a separate table.
    rope: dict[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise CheckpointError(f"{path}: rotary scaling {kind!r} is not supported")
    ends = raw.get("eos_token_id")
    try:
        return ModelConfig(
            vocab_size=raw["vocab_size"],
            hidden_size=raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            num_layers=raw["num_hidden_layers"],
            num_heads=raw["num_attention_heads"],
            num_kv_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
            head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
            rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
            norm_eps=raw.get("rms_norm_eps", 1e-6),
            max_positions=raw["max_position_embeddings"],
            end_tokens=tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,),
            tied_embeddings=raw.get("tie_word_embeddings", False),
        )
    except KeyError as error:
        raise CheckpointError(f"{path}: {error.args[0]} is missing") from error


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    """Reads all tensors of the checkpoint's ``*.safetensors`` files."""
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise CheckpointError(
            "a checkpoint needs the package safetensors: pip install safetensors"
        ) from error
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{directory}: there is no *.safetensors file")
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            tensors |= load_file(path)
        except Exception as error:  # safetensors raises its own exception, and those of the system
            raise CheckpointError(f"{path}: {error}") from error
    return tensors


def _assemble(config: ModelConfig, tensors: dict[str, Tensor]) -> Weights:
    """Selects the weights from a checkpoint's tensors, and checks their shapes."""
    size, queries, kv = (
        config.hidden_size,
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
    )

    def take(name: str, *shape: int) -> Tensor:
        tensor = tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"the checkpoint has no tensor {name}")
        if tensor.shape != shape:
            raise CheckpointError(f"{name} is of shape {tuple(tensor.shape)}: config.json says {shape}")
        return tensor.float()

    def layer(number: int) -> LayerWeights:
        at = f"model.layers.{number}"
        attention, mlp = f"{at}.self_attn", f"{at}.mlp"
        rows = {"q_proj": queries, "k_proj": kv, "v_proj": kv}
        return LayerWeights(
            attention_norm=take(f"{at}.input_layernorm.weight", size),
            qkv=torch.cat([take(f"{attention}.{name}.weight", count, size) for name, count in rows.items()]),
            output=take(f"{attention}.o_proj.weight", size, queries),
            mlp_norm=take(f"{at}.post_attention_layernorm.weight", size),
            gate_up=torch.cat(
                [
                    take(f"{mlp}.{name}.weight", config.intermediate_size, size)
                    for name in ("gate_proj", "up_proj")
                ]
            ),
            down=take(f"{mlp}.down_proj.weight", size, config.intermediate_size),
        )

    embedding = take("model.embed_tokens.weight", config.vocab_size, size)
    return Weights(
        embedding=embedding,
        layers=[layer(number) for number in range(config.num_layers)],
        norm=take("model.norm.weight", size),
        head=embedding if config.tied_embeddings else take("lm_head.weight", config.vocab_size, size),
    )


class Tokenizer(Protocol):
    """Converts text to tokens and back."""

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text. A text that is not empty has at least one token."""

    def decode(self, tokens: list[int]) -> str:
        """Returns the text of tokens."""


class AsciiTokenizer:
    """A tokenizer with one token per printable ASCII character, so that all output is readable.

    Token ids above 94 have no text.
    """

    def encode(self, text: str) -> list[int]:
        """Returns one token per character.

        Characters that are not printable ASCII become question marks.
        """
        return [ord(character if " " <= character <= "~" else "?") - 32 for character in text]

    def decode(self, tokens: list[int]) -> str:
        """Returns the characters."""
        return "".join(chr(token + 32) for token in tokens if token < 95)


class ByteTokenizer:
    """A tokenizer with one token per byte, for a checkpoint without a usable tokenizer.

    Token ids above 255 have no text.
    """

    def encode(self, text: str) -> list[int]:
        """Returns the bytes of a text."""
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        """Returns the text of bytes. Invalid bytes become the replacement character."""
        return bytes(token for token in tokens if token < 256).decode(errors="replace")


class _JsonTokenizer:
    """A tokenizer that is defined by a tokenizer.json, and uses the package ``tokenizers``."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens))


def _read_tokenizer(directory: Path, config: ModelConfig) -> Tokenizer:
    """Returns the checkpoint's tokenizer.

    If it is missing, or if the package ``tokenizers`` is not installed, returns a tokenizer of bytes.
    """
    path = directory / "tokenizer.json"
    if path.exists() and importlib.util.find_spec("tokenizers") is not None:
        return _JsonTokenizer(importlib.import_module("tokenizers").Tokenizer.from_file(str(path)))
    if config.vocab_size < 256:
        raise CheckpointError(
            f"{directory}: bytes do not fit a vocabulary of {config.vocab_size} tokens, and there is no "
            "tokenizer.json, or no package tokenizers to read it with"
        )
    return ByteTokenizer()
