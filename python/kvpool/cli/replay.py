"""``kvpool replay``: runs a request trace through the block manager.

This module owns the check for options that contradict each other, and the steps from options to a report.
:mod:`kvpool.cli.options` describes the options, :mod:`kvpool.cli.running` does the work, and
:mod:`kvpool.cli.report` prints the result.
"""

import json
import resource
import sys
import time
from typing import TYPE_CHECKING, Any, cast

import typer
from rich.console import Console

import kvpool
from kvpool.cli import options
from kvpool.cli.capacity import SizeOptions
from kvpool.cli.files import check_output
from kvpool.cli.gpus import Gpu, Gpus, GpuShare, WeightsGib, gpu_memory, warn_of_copies
from kvpool.cli.plot import HitRatePlot, need_matplotlib
from kvpool.cli.problems import UsageError, bad_usage
from kvpool.cli.replay_tiers import beneath, stacks, with_tiers
from kvpool.cli.report import Outcome, print_report
from kvpool.cli.rows import flat, one_form, print_csv
from kvpool.cli.running import advance, load
from kvpool.cli.size_tiers import DiskRead, DiskTib, HostGib, HostRead, tiers_asked
from kvpool.errors import HashingError, InvalidArgumentError
from kvpool.sizing.grouped import DEFAULT_KEEP, group_arguments, parse_keep

if TYPE_CHECKING:
    from kvpool._core import EvictionPolicy, HashAlgorithm, VerifyMode

__all__ = ["replay_command"]


def replay_command(
    trace: options.TracePath = None,
    trace_format: options.TraceFormat = "auto",
    limit: options.Limit = None,
    trace_block_size: options.TraceBlockSize = None,
    no_check_prefixes: options.NoCheckPrefixes = False,
    sort: options.Sort = False,
    sessions_at_once: options.SessionsAtOnce = None,
    mode: options.Mode = "engine",
    block_size: options.BlockSize = 16,
    capacity_blocks: options.CapacityBlocks = None,
    capacity_gib: options.CapacityGib = None,
    model: options.Model = None,
    config: options.Config = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    weights_gib: WeightsGib = None,
    gpu_share: GpuShare = None,
    dtype: options.Dtype = None,
    layers: options.Layers = None,
    kv_heads: options.KvHeads = None,
    head_dim: options.HeadDim = None,
    latent_dim: options.LatentDim = None,
    keep: options.Keep = DEFAULT_KEEP,
    eviction: options.Eviction = "lru",
    explain: options.Explain = False,
    algorithm: options.Hash = "sha256",
    verify: options.Verify = "none",
    seed: options.Seed = None,
    watermark: options.Watermark = None,
    max_running: options.MaxRunning = None,
    step_tokens: options.StepTokens = None,
    step_ms: options.StepMs = None,
    prefill_tokens_per_s: options.PrefillTokensPerS = None,
    host_gib: HostGib = None,
    host_read: HostRead = None,
    disk_tib: DiskTib = None,
    disk_read: DiskRead = None,
    threads: options.Threads = 0,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    png: options.Png = None,
    journal: options.Journal = None,
    no_progress: options.NoProgress = False,
) -> None:
    """Replay a request trace and report what the prefix cache hits.

    The trace has the arrival and the length of each request, and ids that show
    which blocks are equal. The replay makes up tokens that match. No GPU is
    needed: everything except the model's arithmetic happens as in an engine.
    """
    engine = {
        "explain": explain or None,
        "watermark": watermark,
        "max_running": max_running,
        "step_tokens": step_tokens,
        "step_ms": step_ms,
        "prefill_tokens_per_s": prefill_tokens_per_s,
    }
    given: dict[str, Any] = {name: value for name, value in engine.items() if value is not None}
    one_form(as_json=as_json, as_csv=as_csv)
    memory = gpu_memory(gpu, gpus, weights_gib, gpu_share)
    sizes = SizeOptions(
        capacity_blocks, capacity_gib, model, dtype, layers, kv_heads, head_dim, latent_dim, config, memory
    )
    capacity = sizes.capacity(block_size)
    warn_of_copies(memory, capacity.shape)
    try:
        kept = parse_keep(keep)
    except InvalidArgumentError as error:
        raise bad_usage(error) from None
    groups = capacity.groups
    # For a hybrid model, lookup mode uses a manager, so ``--explain`` is allowed. For other models, it uses a
    # pool, which records no reasons for misses.
    timed = [name for name in given if name != "explain" or groups is None]
    if mode == "lookup" and timed:
        refused = ", ".join(f"--{name.replace('_', '-')}" for name in timed)
        raise UsageError(f"lookup mode has no time in it and takes no {refused}", "--mode engine has")
    blocks = {"block_size": block_size} if groups is None else group_arguments(groups, kept)
    tiers = tiers_asked(host_gib, host_read, disk_tib, disk_read, capacity.shape)
    below = beneath(tiers, capacity, mode)
    if png is not None:
        check_output(png, ".png", trace)
        need_matplotlib()
    began = time.perf_counter()
    # Scripts read JSON and CSV. With these, a progress bar is shown only if stderr is a terminal.
    progress = not no_progress and (not (as_json or as_csv) or sys.stderr.isatty())
    loaded, source = load(
        trace,
        limit=limit,
        block_tokens=trace_block_size,
        check_prefixes=not no_check_prefixes,
        trace_format=trace_format,
        sort=sort,
        sessions_at_once=sessions_at_once,
        progress=progress,
    )
    ready = time.perf_counter()

    def start(below: list[tuple[int, float]], **more: Any) -> kvpool.traces.Replay:
        return kvpool.traces.Replay(
            loaded,
            mode=mode,
            capacity_blocks=capacity.blocks,
            algorithm=cast("HashAlgorithm", algorithm),
            verify=cast("VerifyMode", verify),
            seed=seed,
            eviction=cast("EvictionPolicy", eviction),
            threads=threads,
            tiers=below or None,
            **blocks,
            **given,
            **more,
        )

    try:
        before = stacks(
            tiers, below, start, lambda replay, name: advance(replay, progress=progress, name=name)
        )
        replay = start(below, journal=None if journal is None else kvpool.journal.Journal(journal))
    except (InvalidArgumentError, HashingError) as error:
        raise bad_usage(error) from error
    plot = HitRatePlot(png, replay) if png else None
    advance(replay, progress=progress, each_slice=plot.sample if plot else None)
    replay.flush_journal()
    report = json.loads(replay.report_json())
    outcome = Outcome(
        source=source,
        trace=loaded.summary(),
        capacity=capacity,
        report=with_tiers(report, tiers, before) if tiers else report,
        read_seconds=ready - began,
        wall_seconds=time.perf_counter() - ready,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
    if plot:
        plot.draw(
            f"{source}: {mode} mode, {capacity.blocks:,} blocks of {blocks['block_size']} tokens, {eviction}"
        )
    if as_json:
        typer.echo(json.dumps(outcome.as_json(), indent=2))
    elif as_csv:
        print_csv([flat(outcome.as_json())])
    else:
        print_report(outcome, Console(highlight=False))
