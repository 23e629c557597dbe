"""The memory of GPUs, and the part for a KV cache: ``--gpu``, ``--gpus``, ``--weights-gib``, ``--gpu-share``.

This module owns the list of GPUs and the formula: GPUs x memory x share - weights. Figures are the
vendors', in GiB. A driver reports about 1 % less. With ECC, GDDR6 has 15/16 of its size, and the
figures include this. The memory outside of the share is for an engine's activations and graphs. By
default it is a tenth, as in vLLM, SGLang and TensorRT-LLM.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvpool.cli.problems import UsageError
from kvpool.cli.tables import figure

if TYPE_CHECKING:
    from kvpool.models import KvShape

__all__ = [
    "GPUS",
    "Gpu",
    "GpuMemory",
    "GpuShare",
    "Gpus",
    "WeightsGib",
    "gpu_memory",
    "gpu_named",
    "warn_of_copies",
]

#: The memory of each GPU in GiB, by the name of the GPU.
GPUS: Final[dict[str, float]] = {
    "l4": 22.5,
    "a10": 22.5,
    "l40s": 45,
    "rtx-4090": 24,
    "rtx-5090": 32,
    "a100-40": 40,
    "a100": 80,
    "h20": 96,
    "h100": 80,
    "h100-nvl": 94,
    "gh200": 96,
    "h200": 141,
    "b200": 180,
    "gb200": 186,
    "mi250x": 128,
    "mi300x": 192,
    "mi325x": 256,
    "mi350x": 288,
    "mi355x": 288,
}

#: Words in product names of GPUs that are ignored, because they do not identify the memory size.
_NOISE: Final = re.compile(r"nvidia|amd|instinct|geforce|tesla|tensor|core|gpu|sxm\d?|pcie|oam|hbm\d?e?|rtx")
#: The largest relative difference between the memory size in a product name and the size in ``GPUS``. Vendors
#: round sizes, and ECC reduces them.
_ROUNDED: Final = 0.15
_ALIASES: Final = {"a10g": "a10"}

#: The share of a GPU's memory that engines use by default, for weights and KV.
_SHARE: Final = 0.9

_PANEL: Final = "Size by GPU"


def _complete(incomplete: str) -> list[str]:
    return [name for name in GPUS if name.startswith(incomplete.lower())]


Gpu = Annotated[
    str | None,
    typer.Option(
        help=f"Size by GPU, instead of GiB: one of {', '.join(GPUS)}. Needs --weights-gib.",
        metavar="NAME",
        rich_help_panel=_PANEL,
        show_default=False,
        autocompletion=_complete,
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(
        help="GPUs that weights and KV are divided among; those beyond a model's KV heads only under data "
        "parallelism.",
        metavar="N",
        rich_help_panel=_PANEL,
        show_default="1",
    ),
]
WeightsGib = Annotated[
    float | None,
    typer.Option(
        help="What the weights take on all of them together: the size of the checkpoint's files.",
        metavar="GIB",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
GpuShare = Annotated[
    float | None,
    typer.Option(
        help="Share of the memory that the engine uses for both, vLLM's --gpu-memory-utilization.",
        metavar="SHARE",
        rich_help_panel=_PANEL,
        show_default=str(_SHARE),
    ),
]


@dataclasses.dataclass(frozen=True, slots=True)
class GpuMemory:
    """The memory of one or more GPUs, and the part of it that remains for a KV cache.

    >>> GpuMemory("h100", 2, 0.9, 130.4).in_words()
    '2 x h100 of 80 GiB, 90 % used, weights 130.4 GiB'
    """

    name: str
    gpus: int
    share: float
    weights_gib: float

    @property
    def kv_gib(self) -> float:
        """The memory for the KV cache, in GiB."""
        return self.gpus * GPUS[self.name] * self.share - self.weights_gib

    def in_words(self) -> str:
        """Return the GPUs, the used share and the weights as text."""
        return (
            f"{self.gpus} x {self.name} of {GPUS[self.name]:g} GiB, {100 * self.share:g} % used, "
            f"weights {figure(self.weights_gib)} GiB"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return {**dataclasses.asdict(self), "memory_gib": GPUS[self.name], "kv_gib": self.kv_gib}


def gpu_memory(
    gpu: str | None, gpus: int | None, weights_gib: float | None, share: float | None
) -> GpuMemory | None:
    """Return the memory that the options about GPUs specify, or ``None`` without ``--gpu``.

    Raises:
        UsageError: A GPU is unknown, a number is out of range, an option needs another, or there is no
            room for KV.

    """
    if gpu is None:
        for option, value in (("--gpus", gpus), ("--weights-gib", weights_gib), ("--gpu-share", share)):
            if value is not None:
                raise UsageError(f"{option} needs --gpu", "--gpu h100 for instance")
        return None
    name = gpu_named(gpu)
    if weights_gib is None:
        raise UsageError(
            "--gpu needs --weights-gib", "the size of the checkpoint's files; 0 for the whole memory"
        )
    if not math.isfinite(weights_gib) or weights_gib < 0:
        raise UsageError(f"--weights-gib is {weights_gib}: must be a number, 0 or more")
    number = 1 if gpus is None else gpus
    if not 1 <= number <= 1_000_000:
        raise UsageError(f"--gpus is {number}: must be 1 to 1,000,000")
    used = _SHARE if share is None else share
    if not 0 < used <= 1:
        raise UsageError(f"--gpu-share is {used}: must be above 0, and at most 1")
    memory = GpuMemory(name, number, used, weights_gib)
    if memory.kv_gib <= 0:
        total = number * GPUS[name] * used
        raise UsageError(
            f"--weights-gib is {weights_gib:g}: {number} x {name} have {figure(total)} GiB for weights and "
            "KV",
            f"--gpus {math.ceil(weights_gib / (GPUS[name] * used)) + 1} have room for both",
        )
    return memory


def gpu_named(text: str) -> str:
    """Return the name in ``GPUS`` of a GPU, from the name that nvidia-smi or a cloud provider uses.

    Raises:
        UsageError: The list has no such GPU, or none with this memory.

    >>> gpu_named("NVIDIA A100-SXM4-40GB"), gpu_named("H100 80GB"), gpu_named("RTX 4090")
    ('a100-40', 'h100', 'rtx-4090')
    """
    plain = re.sub(r"(?<![a-z0-9])(\d+) *(?:gib|gb|g)\b", r" size\1 ", text.lower().replace("_", "-"))
    words = [word for word in re.findall(r"[a-z0-9]+", plain) if not _NOISE.fullmatch(word)]
    size = next((int(word[4:]) for word in words if re.fullmatch(r"size\d+", word)), None)
    asked = _joined("".join(word for word in words if not word.startswith("size")))
    known = {_joined(name): name for name in GPUS} | _ALIASES
    if size is None and asked not in known and len(words) > 1 and words[-1].isdecimal():
        size, asked = int(words[-1]), "".join(words[:-1])
    if size is None and asked in known:
        return known[asked]
    family = [name for name in GPUS if asked in (_joined(name), name.partition("-")[0])]
    if size is not None and family:
        nearest = min(family, key=lambda name: abs(size - GPUS[name]))
        if abs(size - GPUS[nearest]) <= _ROUNDED * GPUS[nearest]:
            return nearest
    if family:
        hint = (
            f"{', '.join(f'{name} has {GPUS[name]:g} GiB' for name in family)}; --capacity-gib takes any size"
        )
    else:
        close = [name for joined, name in known.items() if len(asked) > 2 and joined.startswith(asked)]
        close = close or [known[one] for one in difflib.get_close_matches(asked, known, n=1, cutoff=0.8)]
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        hint += "--capacity-gib takes any size"
    raise UsageError(f"--gpu is {text!r}: must be one of {', '.join(GPUS)}", hint)


def _joined(name: str) -> str:
    return name.replace("-", "").removeprefix("rtx")


def kv_heads(shape: KvShape) -> int | None:
    """Return the smallest number of KV heads that an attention layer of the model has.

    >>> from kvpool.models import kv_shape
    >>> [kv_heads(kv_shape(name)) for name in ("Llama-3.1-8B", "DeepSeek-V3", "Gemma-4-31B")]
    [8, 1, 4]
    """
    found = []
    for kind in shape.layers:
        heads = re.match(r"(\d+) x ", kind.what)
        if kind.kind != "state" and (heads or kind.what.startswith("MLA")):
            found.append(int(heads[1]) if heads else 1)
    return min(found, default=None)


def warn_of_copies(memory: GpuMemory | None, shape: KvShape | None) -> None:
    """Print a note on stderr if there are more GPUs than KV heads.

    Tensor parallelism then keeps copies of the KV.
    """
    heads = None if shape is None else kv_heads(shape)
    if memory is None or shape is None or heads is None or memory.gpus <= heads:
        return
    words = "one KV head" if heads == 1 else f"{heads} KV heads"
    typer.echo(
        f"note: {shape.name} has {words} to a layer: tensor parallelism over {memory.gpus} GPUs keeps "
        f"{memory.gpus / heads:g} copies of each; this much KV fits only with data parallelism",
        err=True,
    )
