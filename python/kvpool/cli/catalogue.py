"""``kvpool models``: the size of a model's KV cache, and what fits into a given memory."""

from __future__ import annotations

import contextlib
import json
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvpool.cli import options  # noqa: TC001 - Typer reads the annotations
from kvpool.cli.capacity import SizeOptions
from kvpool.cli.gpus import Gpu, Gpus, GpuShare, WeightsGib, gpu_memory, warn_of_copies
from kvpool.cli.problems import UsageError, bad_usage
from kvpool.cli.rows import flat, one_form, print_csv
from kvpool.cli.tables import figure, show
from kvpool.cli.terminal import shown
from kvpool.models import DEFAULT_CHUNK, KvGroups, KvShape, kv_shape, model_names
from kvpool.models.dtypes import dtype_name

__all__ = ["models_command"]

Name = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="Its groups in detail.", show_default=False)
]
CapacityGib = Annotated[float | None, typer.Option(help="How many blocks and requests fit.", metavar="GIB")]
RequestTokens = Annotated[
    int, typer.Option(help="Tokens of such a request.", metavar="N", min=1, max=1 << 32)
]
Chunk = Annotated[
    int,
    typer.Option(help="Tokens of a prompt that a step computes, at most.", metavar="N", min=1, max=1 << 32),
]


def models_command(
    model: Name = None,
    config: options.Config = None,
    dtype: options.Dtype = None,
    block_size: options.BlockSize = 16,
    capacity_gib: CapacityGib = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    weights_gib: WeightsGib = None,
    gpu_share: GpuShare = None,
    request_tokens: RequestTokens = 32_000,
    chunk: Chunk = DEFAULT_CHUNK,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the table.")
    ] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV instead of the table, a line per model.")
    ] = False,
) -> None:
    """List the models that kvpool knows, or show the KV-cache groups of one model.

    Sizes are sums over all layers and all ranks, in bf16 elements unless
    --dtype sets another format. A request keeps only the tokens in its window
    or chunk, and one recurrent state. While a step computes a chunk of a
    prompt, a window also has the tokens of that chunk. --chunk is the size of
    such a chunk. The number of requests that fit assumes that one of them at a
    time computes its prompt.
    """
    one_form(as_json=as_json, as_csv=as_csv)
    memory = gpu_memory(gpu, gpus, weights_gib, gpu_share)
    if memory is not None and capacity_gib is not None:
        raise UsageError("--gpu and --capacity-gib both give the size: give one of them")
    shape = (
        SizeOptions(model=model, config=config, dtype=dtype).shape() if model is not None or config else None
    )
    if shape is None:
        if capacity_gib is not None or memory is not None:
            option = "--capacity-gib" if memory is None else "--gpu"
            raise UsageError(f"{option} needs a model", "kvpool models NAME, or --config FILE")
        shapes = _all_shapes(dtype)
        if as_json:
            models = [_facts(shape, block_size, chunk) for shape in shapes]
            typer.echo(
                json.dumps({"dtype": dtype or "bf16", "block_size": block_size, "models": models}, indent=2)
            )
        elif as_csv:
            print_csv([_row(shape, _facts(shape, block_size, chunk)) for shape in shapes])
        else:
            _print_list(shapes, block_size, chunk, dtype or "bf16")
        return
    gib = capacity_gib if memory is None else memory.kv_gib
    warn_of_copies(memory, shape)
    try:
        facts = _facts(shape, block_size, chunk) | _fit(shape.groups(block_size), request_tokens, chunk, gib)
    except ValueError as error:
        raise bad_usage(ValueError(str(error).replace("gib is", "capacity_gib is"))) from None
    if as_json:
        more = {} if memory is None else {"gpu": memory.as_json()}
        typer.echo(json.dumps({"dtype": shape.dtype, "block_size": block_size, **facts, **more}, indent=2))
    elif as_csv:
        print_csv([_row(shape, facts)])
    else:
        _print_model(shape, facts)
        if memory is not None:
            Console(highlight=False).print(
                f"{figure(memory.kv_gib)} GiB is what {memory.in_words()} leave for KV."
            )


def _all_shapes(dtype: str | None) -> list[KvShape]:
    """Return the models of the catalogue whose KV can have this format.

    For example, the KV of models with MLA cannot be nvfp4.
    """
    shapes = []
    try:
        name = dtype_name(dtype or "bf16")
    except ValueError as error:
        raise bad_usage(error) from None
    for model in model_names():
        # The function kv_shape raises ValueError if the model's KV cannot have this format.
        with contextlib.suppress(ValueError):
            shapes.append(kv_shape(model, name))
    return shapes


def _row(shape: KvShape, facts: dict[str, Any]) -> dict[str, Any]:
    return {"name": facts["name"], "layers": shape.in_words(), **flat(facts)}


def _facts(shape: KvShape, block_size: int, chunk: int) -> dict[str, Any]:
    groups = shape.groups(block_size)
    return {
        "name": shape.name,
        "layers": [
            {
                "kind": kind.kind,
                "layers": kind.count,
                "span": kind.span or None,
                "keeps": kind.what,
                "bytes_per_token": token_bytes,
                "bytes_per_state": kind.state_bytes,
            }
            for kind, token_bytes in zip(shape.layers, shape.token_bytes(), strict=True)
        ],
        "bytes_per_token": shape.bytes_per_token,
        "bytes_per_state": shape.bytes_per_state,
        "bytes_per_block": groups.block_bytes,
        "groups": [
            {
                "kind": group.kind,
                "layers": group.layers,
                "span": group.span or None,
                "block_tokens": group.block_tokens,
                "used_bytes_per_block": group.used_bytes,
            }
            for group in groups.groups
        ],
        "gib_per_100k_tokens": groups.request_bytes(100_000, chunk) / 2**30,
    }


def _fit(groups: KvGroups, tokens: int, chunk: int, gib: float | None) -> dict[str, Any]:
    """Return the blocks of a request of ``tokens`` tokens, and the number of such requests that fit."""
    by_group = groups.request_blocks(tokens, chunk)
    request = {
        "tokens": tokens,
        "chunk": chunk,
        "blocks": by_group,
        "bytes": sum(by_group) * groups.block_bytes,
    }
    if gib is None:
        return {"request": request, "capacity": None}
    blocks = groups.blocks_in(gib)
    capacity = {
        "gib": gib,
        "blocks": blocks,
        "requests": groups.requests_in(blocks, tokens, chunk),
        "longest_request": groups.longest_in(blocks, chunk),
    }
    return {"request": request, "capacity": capacity}


def _print_list(shapes: list[KvShape], block_size: int, chunk: int, dtype: str) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=f"KV cache, in {dtype}", pad_edge=False)
    table.add_column("model", no_wrap=True)
    table.add_column("layers", no_wrap=True)
    for name in ("KiB/\ntoken", "MiB/\nstate", "GiB/\n100k"):
        table.add_column(name, justify="right", no_wrap=True)
    for shape in shapes:
        state = shape.bytes_per_state
        table.add_row(
            shape.name,
            _in_short(shape),
            f"{shape.bytes_per_token / 2**10:.1f}",
            f"{state / 2**20:.1f}" if state else "",
            f"{shape.groups(block_size).request_bytes(100_000, chunk) / 2**30:.2f}",
        )
    console = Console(highlight=False)
    show(console, table)
    for line in (
        "KiB/token: what a token leaves in all layers that keep tokens. MiB/state: what recurrent layers "
        "keep of a request, and again for each checkpoint.",
        f"GiB/100k: the most that a request of 100,000 tokens takes, computed in chunks of {chunk:,}, in "
        "blocks of the groups that share a pool: windows, chunks and states counted as what they are, "
        "padding included. kvpool models NAME shows the groups.",
    ):
        console.print(line, style="dim")


def _in_short(shape: KvShape) -> str:
    """Return a short text with the number of layers of each kind, and the sizes of windows.

    >>> _in_short(kv_shape("DeepSeek-V3")), _in_short(kv_shape("gpt-oss-20b"))
    ('61 MLA', '12 full, 12 window 128')
    """
    names = {"sliding": "window", "chunked": "chunk"}
    parts = []
    for kind in shape.layers:
        name = "MLA" if kind.what.startswith("MLA") else names.get(kind.kind, kind.kind)
        parts.append(f"{kind.count} {name}" + (f" {kind.span:,}" if kind.span else ""))
    return ", ".join(parts)


def _print_model(shape: KvShape, facts: dict[str, Any]) -> None:
    console = Console(highlight=False)
    request, capacity = facts["request"], facts["capacity"]
    groups = facts["groups"]
    title = f"{shown(shape.name)} in {shape.dtype}: KV-cache groups"
    table = Table(box=box.SIMPLE_HEAD, title=Text(title), pad_edge=False)
    table.add_column("group", no_wrap=True)
    for name in ("layers", "tokens\nper block", "padding", f"blocks of\n{request['tokens']:,} tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    for group, blocks in zip(groups, request["blocks"], strict=True):
        span = f" {group['span']:,}" if group["span"] else ""
        padding = 100 * (1 - group["used_bytes_per_block"] / facts["bytes_per_block"])
        table.add_row(
            group["kind"] + span,
            f"{group['layers']:,}",
            f"{group['block_tokens']:,}",
            f"{padding:.1f} %" if padding else "",
            f"{blocks:,}",
        )
    show(console, table)
    kept = Table(box=box.SIMPLE_HEAD, title="What a layer keeps", pad_edge=False)
    for name in ("kind", "layers", "KiB/token", "KiB/state"):
        kept.add_column(name, justify="left" if name == "kind" else "right", no_wrap=True)
    for kind in facts["layers"]:
        kept.add_row(
            Text(f"{kind['kind']}: {kind['keeps']}"),
            f"{kind['layers']:,}",
            figure(kind["bytes_per_token"] / 2**10) if kind["bytes_per_token"] else "",
            figure(kind["bytes_per_state"] / 2**10, 5) if kind["bytes_per_state"] else "",
        )
    show(console, kept)
    console.print(Text("\n".join(_in_words(facts, request, capacity))))


def _in_words(facts: dict[str, Any], request: dict[str, Any], capacity: dict[str, Any] | None) -> list[str]:
    lines = [
        f"A block takes {figure(facts['bytes_per_block'] / 2**20)} MiB, whichever group it is of.",
        f"A request of {request['tokens']:,} tokens, computed in chunks of {request['chunk']:,}, takes at "
        f"most {sum(request['blocks']):,} blocks, {figure(request['bytes'] / 2**30, 3)} GiB.",
    ]
    if capacity is not None:
        longest = capacity["longest_request"]
        one = "one of any length" if longest is None else f"one of {longest:,} tokens"
        lines.append(
            f"{capacity['gib']:g} GiB hold {capacity['blocks']:,} blocks: {capacity['requests']:,} such "
            f"requests that share nothing, or {one}."
        )
    return lines
