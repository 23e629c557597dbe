"""``kvpool models``: what the KV cache of well-known models weighs."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from kvpool.models import KvShape, kv_shape, model_names

__all__ = ["MODELS_EXAMPLES", "models_command"]

MODELS_EXAMPLES: Final = """Examples:

  kvpool models

  kvpool models | grep -i qwen

  kvpool models --json | jq '.models[] | select(.layers > 90)'"""


def models_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """List the models that kvpool replay knows, and what a token takes.

    In bf16 elements, over all layers, on all ranks together. fp8 takes half.
    Layers with a sliding window are counted in full: a * marks such models.
    """
    shapes = [kv_shape(name) for name in model_names()]
    if as_json:
        typer.echo(json.dumps({"dtype": "bf16", "models": [_facts(shape) for shape in shapes]}, indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, title="KV cache, in bf16", title_justify="left", pad_edge=False)
    table.add_column("model", no_wrap=True)
    for name in ("layers", "KV heads", "head dim", "KiB/token", "GiB/100k tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    for shape in shapes:
        latent = shape.latent_dim
        table.add_row(
            f"{shape.name} *" if shape.windowed else shape.name,
            str(shape.layers),
            str(shape.kv_heads) if latent is None else "MLA",
            str(shape.head_dim if latent is None else latent),
            f"{shape.bytes_per_token / 2**10:.1f}",
            f"{_gib_of_100k(shape):.2f}",
        )
    console = Console(highlight=False)
    console.print(table)
    console.print("MLA: one latent vector per layer and token instead of keys and values.", style="dim")
    console.print(
        "*: some layers see a sliding window alone (of Mistral-7B, those of its first version). They are counted in "
        "full; an engine that frees what lies outside the window needs less.",
        style="dim",
    )


def _gib_of_100k(shape: KvShape) -> float:
    return shape.bytes_per_token * 100_000 / 2**30


def _facts(shape: KvShape) -> dict[str, str | int | float | bool | None]:
    return {
        "name": shape.name,
        "layers": shape.layers,
        "kv_heads": shape.kv_heads if shape.latent_dim is None else None,
        "head_dim": shape.head_dim if shape.latent_dim is None else None,
        "latent_dim": shape.latent_dim,
        "sliding_window": shape.windowed,
        "windows_counted": "in full" if shape.windowed else None,
        "bytes_per_token": shape.bytes_per_token,
        "gib_per_100k_tokens": _gib_of_100k(shape),
    }
