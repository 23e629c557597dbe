"""Replays a trace through a manager with a hybrid model's KV-cache groups, once per cache size.

A single curve of stack distances describes only one group. With several groups, the next victim depends
on all of them. Therefore each size needs its own run of :class:`kvpool.traces.Replay`, in lookup mode
and with LRU. This module owns the list of runs, their threads, and their results.

The option ``keep`` decides which content of windows and states remains cached for later requests. The
choices are all content, one checkpoint per given number of tokens, or only junctions. A junction is the
end of a prompt, or the point where a later prompt departs from an earlier one
(:mod:`kvpool.models.groups`). A run over 144 million prompt tokens takes 2 to 20 s, depending on the
groups and on ``keep``.
"""

from __future__ import annotations

import concurrent.futures
import json
import math
import os
import re
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from kvpool._core.traces import Replay
from kvpool.errors import InvalidArgumentError
from kvpool.models import KvShape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvpool._core.traces import Trace
    from kvpool.models import KvGroups
    from kvpool.sizing import report as schema

__all__ = ["DEFAULT_KEEP", "SPACINGS", "group_arguments", "group_runs", "parse_keep"]

#: The default of the argument ``keep``: which content of windows and states remains cached.
DEFAULT_KEEP: Final = "junctions"
#: Numbers of tokens between checkpoints. The table of spacing has one row for each of them.
SPACINGS: Final = (512, 1024, 2048, 4096)
#: Tokens per block in these runs. Blocks of 16 tokens would give the same hits to within one block per
#: prompt, but take four times as long.
_BLOCK_TOKENS: Final = 64
#: Tokens per block for models with states. The groups lengthen these blocks in multiples of this size.
_BLOCK_TOKENS_OF_STATES: Final = 16

#: Number of requests that a run replays between two calls of ``progress``.
_SLICE: Final = 128
#: The table of spacing is computed for the size that is nearest to this percentage of the trace's
#: different blocks.
_SPACING_PERCENT: Final = 10.0

Keep = int | str


def parse_keep(text: str) -> Keep:
    """Parse a value of ``keep``: ``all``, ``junctions`` or a number of tokens.

    >>> parse_keep("2,048"), parse_keep("Junctions")
    (2048, 'junctions')

    Raises:
        InvalidArgumentError: The text is none of these.
    """
    word = text.strip().lower().replace(",", "")
    if word in {"all", "junctions"}:
        return word
    if re.fullmatch(r"[0-9]{1,12}", word) and int(word) >= 1:
        return int(word)
    raise InvalidArgumentError(f"keep is {text!r}: must be all, junctions, or a number of tokens, 1 or more")


def group_arguments(groups: KvGroups, keep: Keep) -> dict[str, Any]:
    """Returns the keyword arguments of :class:`kvpool.traces.Replay` for these groups."""
    each = [
        (group.kind, group.block_tokens, group.span, None if group.kind == "full" else keep)
        for group in groups.groups
    ]
    return {"groups": each, "block_size": math.gcd(*(group.block_tokens for group in groups.groups))}


def group_runs(
    trace: Trace,
    shape: KvShape,
    sizes: Sequence[schema.Capacity],
    *,
    unique_blocks: int,
    keep: Keep = DEFAULT_KEEP,
    jobs: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> schema.Groups | None:
    """Replays the trace with the model's groups at each size, and at one size with each spacing.

    Returns ``None`` if the model has a single group.

    Each run has as much memory as the size's ``gib``. If a size is given in blocks or per cent, this is
    the memory that these blocks would take if all layers kept all tokens. ``progress`` is called on
    this thread with the number of finished requests and the number of all requests.

    Raises:
        InvalidArgumentError: A size is smaller than one block of the pool, or has more blocks than a
            pool can have.

    """
    groups = shape.groups(_BLOCK_TOKENS_OF_STATES if shape.bytes_per_state else _BLOCK_TOKENS)
    if len(groups.groups) < 2:
        return None
    began = time.perf_counter()
    gibs = [capacity["gib"] or 0.0 for capacity in sizes]
    states = any(group.kind == "state" for group in groups.groups)
    share = unique_blocks * _SPACING_PERCENT / 100
    spaced = min(range(len(sizes)), key=lambda at: abs(math.log((sizes[at]["blocks"] + 1) / (share + 1))))
    spacings = _spacings(groups, keep, states=states)
    jobs_of = [_Job(groups, gib, keep) for gib in gibs]
    jobs_of += [_Job(groups, gibs[spaced], each) for each in spacings]
    # For comparison, run a model with the same memory in which all layers keep all tokens.
    whole = None if states else KvShape.of_heads("in full", 1, 1, 1).groups(_BLOCK_TOKENS)
    if whole is not None:
        block_bytes = shape.bytes_per_token * _BLOCK_TOKENS
        jobs_of += [_Job(whole, gib, "all", block_bytes) for gib in gibs]
    done = _run_all(trace, jobs_of, jobs, progress)
    runs, more = done[: len(gibs)], done[len(gibs) : len(gibs) + len(spacings)]
    in_full = done[len(gibs) + len(spacings) :]
    for run, full in zip(runs, in_full, strict=False):
        run["in_full_rate"] = full["token_hit_rate"]
    return {
        "block_bytes": groups.block_bytes,
        "groups": _merged(groups),
        "keep": keep,
        "sizes": runs,
        "spacing": sorted([runs[spaced], *more], key=lambda run: _order(run["keep"])),
        "requests": trace.summary()["requests"],
        "seconds": time.perf_counter() - began,
    }


def _spacings(groups: KvGroups, keep: Keep, *, states: bool) -> list[Keep]:
    """Returns the further values of ``keep`` for the table of spacing.

    ``all`` is left out for models with states, because it would mean a checkpoint for every block.
    """
    unit = math.lcm(*(group.block_tokens for group in groups.groups))
    rounded = dict.fromkeys(-(-tokens // unit) * unit for tokens in SPACINGS)
    words: list[Keep] = ["junctions"] if states else ["all", "junctions"]
    return [each for each in [*rounded, *words] if each != keep]


def _order(keep: Keep) -> float:
    return {"all": 0.0, "junctions": math.inf}[keep] if isinstance(keep, str) else keep


def _merged(groups: KvGroups) -> list[schema.Group]:
    """Merges the groups of the same kind and span into one entry."""
    merged: dict[tuple[str, int], schema.Group] = {}
    for group in groups.groups:
        known = merged.setdefault(
            (group.kind, group.span),
            {
                "kind": group.kind,
                "span": group.span or None,
                "groups": 0,
                "layers": 0,
                "block_tokens": group.block_tokens,
                "padding": 0.0,
            },
        )
        known["groups"] += 1
        known["layers"] += group.layers
        known["padding"] += groups.padding(group)
    for known in merged.values():
        known["padding"] /= known["groups"]
    return list(merged.values())


class _Job:
    """A replay of the trace with one pool size and one value of ``keep``, before it is started."""

    def __init__(self, groups: KvGroups, gib: float, keep: Keep, block_bytes: int | None = None) -> None:
        self.groups, self.gib, self.keep = groups, gib, keep
        self.blocks = int(gib * 2**30) // (block_bytes or groups.block_bytes)
        if self.blocks < 1:
            size = (block_bytes or groups.block_bytes) / 2**20
            raise InvalidArgumentError(f"capacities is {gib:.3g} GiB: must hold a block of {size:,.3g} MiB")
        if self.blocks > 2**32 - 8:
            raise InvalidArgumentError(f"capacities is {self.blocks:,} blocks: must be at most {2**32 - 8:,}")

    def run(self, trace: Trace, count_done: Callable[[int], None]) -> schema.GroupRun:
        # To save memory, the pool is never larger than the trace can fill.
        facts = trace.summary()
        tokens = facts["unique_blocks"] * trace.block_tokens + facts["longest_input"]
        most = sum(-(-tokens // group.block_tokens) for group in self.groups.groups)
        replay = Replay(
            trace,
            mode="lookup",
            capacity_blocks=min(self.blocks, most + len(self.groups.groups)),
            algorithm="blake3",
            threads=1,
            **group_arguments(self.groups, self.keep),
        )
        done, total = 0, replay.total
        while done < total:
            before, done = done, replay.advance(_SLICE)
            count_done(done - before)
        report = json.loads(replay.report_json())
        rates: dict[tuple[str, int | None], float] = {}
        for group in report["groups"]:
            # A hit needs all groups of a kind, so the lowest rate of these groups applies.
            key = (group["kind"], group["span"])
            rates[key] = min(rates.get(key, 1.0), group["reach_rate"])
        return {
            "gib": self.gib,
            "blocks": self.blocks,
            "keep": self.keep,
            "token_hit_rate": report["token_hit_rate"],
            "alone": list(rates.values()),
            "in_full_rate": None,
            "checkpoints": report["checkpoints"],
            "evictions": report["evicted"],
            "cut_short": report["cut_short"],
        }


def _run_all(
    trace: Trace, jobs_of: Sequence[_Job], workers: int, progress: Callable[[int, int], None] | None
) -> list[schema.GroupRun]:
    """Runs all jobs on threads, and returns their results in the order of the jobs.

    Ctrl-C cancels the jobs that have not begun, and stops the running ones.
    """
    total, done, lock, stopped = (
        len(jobs_of) * trace.summary()["requests"],
        0,
        threading.Lock(),
        threading.Event(),
    )

    def count_done(requests: int) -> None:
        nonlocal done
        with lock:
            done += requests
        if stopped.is_set():
            raise InvalidArgumentError("stopped")

    with concurrent.futures.ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        waiting = [pool.submit(job.run, trace, count_done) for job in jobs_of]
        try:
            while concurrent.futures.wait(waiting, timeout=0.2).not_done:
                if progress is not None and done:
                    progress(done, total)
            if progress is not None:
                progress(total, total)
            return [job.result() for job in waiting]
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)
