"""The size of the pool: in blocks, or in GiB of a model's KV cache.

This module owns the options about size, and the error messages for combinations that contradict each
other.
"""

from __future__ import annotations

import dataclasses
import math
import os
from typing import TYPE_CHECKING, Final

from kvpool.cli.problems import SHAPE_HINT, UsageError, bad_usage
from kvpool.errors import ModelConfigError
from kvpool.models import KvGroups, KvShape, kv_shape, read_config
from kvpool.models.layers import latent

if TYPE_CHECKING:
    from pathlib import Path

    from kvpool.cli.gpus import GpuMemory

__all__ = ["DEFAULT_BLOCKS", "Capacity", "SizeOptions"]

#: The default number of blocks of a pool.
DEFAULT_BLOCKS: Final = 100_000

#: Maximum number of blocks of a pool, without the null block.
_MOST_BLOCKS: Final = 2**32 - 3

#: Maximum number of layers, of heads, and of elements of a head. Real models have less than a hundredth.
_LARGEST_SHAPE: Final = 1_000_000

#: Maximum number of bytes of host memory that a replay uses per block of the pool.
_HOST_BYTES_PER_BLOCK: Final = 80


@dataclasses.dataclass(frozen=True, slots=True)
class Capacity:
    """The size of a pool, and the KV shape of the model if it is known.

    >>> capacity = SizeOptions(gib=60, model="llama-3.1-8b").capacity(block_size=16)
    >>> capacity.blocks, capacity.gib
    (30720, 60.0)
    """

    #: Usable blocks.
    blocks: int
    #: Number of tokens per block. In a hybrid model, that of the KV-cache group with the shortest blocks.
    block_size: int
    #: The layers, heads and dtype of the model's KV, if they are known.
    shape: KvShape | None
    #: The GPUs, if the size was given with ``--gpu``.
    gpu: GpuMemory | None = None

    @property
    def groups(self) -> KvGroups | None:
        """The KV-cache groups of the model. ``None`` if it is unknown, or has only full attention."""
        groups = None if self.shape is None else self.shape.groups(self.block_size)
        plain = groups is None or [group.kind for group in groups.groups] == ["full"]
        return None if plain else groups

    @property
    def gib(self) -> float | None:
        """The size of the pool in GiB. ``None`` if the model is unknown."""
        return (
            None if self.shape is None else self.blocks * self.shape.bytes_per_block(self.block_size) / 2**30
        )

    @property
    def tokens(self) -> int | None:
        """Number of tokens that the pool can hold. For a hybrid model, the length of the longest request.

        ``None`` if a request of any length fits.
        """
        groups = self.groups
        return self.blocks * self.block_size if groups is None else groups.longest_in(self.blocks)

    def gib_of(self, tokens: int) -> float | None:
        """Return the GiB of KV of ``tokens`` tokens. ``None`` if the model is unknown."""
        return None if self.shape is None else tokens * self.shape.bytes_per_token / 2**30


@dataclasses.dataclass(frozen=True, slots=True)
class SizeOptions:
    """The values of the command-line options about the pool's size. ``None`` if not given."""

    blocks: int | None = None
    gib: float | None = None
    model: str | None = None
    dtype: str | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    latent_dim: int | None = None
    config: Path | None = None
    gpu: GpuMemory | None = None

    def capacity(self, block_size: int) -> Capacity:
        """Return the size of the pool that the options specify.

        Raises:
            UsageError: The options contradict each other, or one is missing.

        """
        if self.blocks is not None and self.gib is not None:
            raise UsageError("--capacity-blocks and --capacity-gib both give the size: give one of them")
        if self.gpu is not None and (self.blocks is not None or self.gib is not None):
            given = "--capacity-gib" if self.blocks is None else "--capacity-blocks"
            raise UsageError(f"--gpu and {given} both give the size: give one of them")
        shape = self.shape()
        option, gib = ("--capacity-gib", self.gib) if self.gpu is None else ("--gpu", self.gpu.kv_gib)
        if gib is None:
            blocks = DEFAULT_BLOCKS if self.blocks is None else self.blocks
        elif shape is None:
            raise UsageError(f"{option} needs the KV shape of a model", f"add {SHAPE_HINT}")
        else:
            blocks = self._blocks_in(gib, shape, block_size)
        if blocks > _MOST_BLOCKS:
            raise UsageError(f"a pool of {blocks:,} blocks: must be at most {_MOST_BLOCKS:,}")
        needed, memory = blocks * _HOST_BYTES_PER_BLOCK, _host_memory()
        if memory is not None and needed > memory:
            raise UsageError(
                f"a pool of {blocks:,} blocks: its bookkeeping takes {needed / 2**30:,.1f} GiB of memory, "
                f"this machine has {memory / 2**30:,.1f}"
            )
        return Capacity(blocks, block_size, shape, self.gpu)

    def shape(self) -> KvShape | None:
        """Return the KV shape that the options specify. ``None`` if they specify none.

        Raises:
            UsageError: The options contradict each other, or one is missing.

        """
        numbers = {
            "--layers": self.layers,
            "--kv-heads": self.kv_heads,
            "--head-dim": self.head_dim,
            "--latent-dim": self.latent_dim,
        }
        given = [option for option, number in numbers.items() if number is not None]
        whole = [
            option
            for option, value in (("--model", self.model), ("--config", self.config))
            if value is not None
        ]
        if len(whole) > 1:
            raise UsageError("--model and --config both give the KV shape: give one of them")
        if whole:
            if given:
                raise UsageError(
                    f"{whole[0]} knows the KV shape, {_and(given)} would change it: give one or the other"
                )
            return self._of_model()
        if not given:
            if self.dtype is not None:
                raise UsageError("--dtype needs the KV shape of a model", f"add {SHAPE_HINT}")
            return None
        if self.latent_dim is not None:
            heads = [option for option in given if option in {"--kv-heads", "--head-dim"}]
            if heads:
                raise UsageError(
                    f"--latent-dim is for MLA models, which have no {_and(heads)}: give one or the other"
                )
            needed = ["--layers", "--latent-dim"]
        else:
            needed = ["--layers", "--kv-heads", "--head-dim"]
        large = [
            option for option, number in numbers.items() if number is not None and number > _LARGEST_SHAPE
        ]
        if large:
            raise UsageError(f"{large[0]} is {numbers[large[0]]}: must be at most {_LARGEST_SHAPE:,}")
        missing = [option for option in needed if option not in given]
        if missing:
            raise UsageError(f"a KV shape needs {_and(needed)}: {_and(missing)} missing")
        return self._of_numbers()

    def _of_model(self) -> KvShape:
        try:
            if self.config is not None:
                return read_config(self.config, self.dtype)
            return kv_shape(self.model or "", self.dtype)
        except ModelConfigError:
            raise
        except ValueError as error:
            message = str(error).replace("; see kvpool.models.model_names()", "")
            raise bad_usage(ValueError(message)) from None

    def _of_numbers(self) -> KvShape:
        layers = _number(self.layers)
        try:
            if self.latent_dim is None:
                shape = KvShape.of_heads(
                    "custom shape", layers, _number(self.kv_heads), _number(self.head_dim)
                )
            else:
                shape = KvShape("custom shape", (latent(layers, self.latent_dim, 0),))
            return shape if self.dtype is None else shape.with_dtype(self.dtype)
        except ValueError as error:
            raise bad_usage(error) from None

    @staticmethod
    def _blocks_in(gib: float, shape: KvShape, block_size: int) -> int:
        if not math.isfinite(gib) or gib < 0:
            raise UsageError(f"--capacity-gib is {gib}: must be a number, 0 or more")
        blocks = shape.blocks_in(gib, block_size)
        if blocks < 1:
            kib, block_size = shape.bytes_per_block(block_size) / 2**10, shape.groups(block_size).block_tokens
            raise UsageError(
                f"--capacity-gib {gib:g} holds no block: one of {block_size} tokens takes {kib:,.1f} KiB"
            )
        return blocks


def _number(option: int | None) -> int:
    """Return the value of an option, or 0 if it is not given. :class:`KvShape` refuses 0."""
    return 0 if option is None else option


def _host_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def _and(options: list[str]) -> str:
    """Join the names of options with commas and "and".

    >>> _and(["--a", "--b", "--c"])
    '--a, --b and --c'
    """
    *front, last = options
    return f"{', '.join(front)} and {last}" if front else last
