"""The results of a replay, as a table and as JSON.

The JSON is the report of :class:`kvpool.traces.Replay`, with the facts of the trace and the costs of
the run. The table shows the same in words, and ends with the definitions of its figures.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from kvpool.cli.replay_tiers import print_replay_tiers
from kvpool.cli.tables import figure, percent, show
from kvpool.cli.terminal import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from kvpool._core.traces import TraceSummary
    from kvpool.cli.capacity import Capacity

__all__ = ["Outcome", "print_report"]

#: A row of the report: name, value, and remark.
Row = tuple[str, str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The report of a finished replay, with facts about the trace and the costs of the run."""

    #: The path of the trace, or ``stdin``, or ``generated``.
    source: str
    #: ``Trace.summary()``.
    trace: TraceSummary
    #: The size of the pool, and the KV shape of the model.
    capacity: Capacity
    #: ``Replay.report_json()``, parsed.
    report: dict[str, Any]
    #: The seconds that reading or generating the trace took.
    read_seconds: float
    #: The seconds that the replay itself took, hashing included.
    wall_seconds: float
    #: The largest resident memory of the process so far, in bytes.
    peak_memory_bytes: int

    @property
    def hashed_blocks(self) -> int:
        """Number of prompt blocks that the replay hashed. In engine mode, only full blocks are hashed."""
        hits = self.report["hits"]
        return int(hits["blocks"] if self.report["engine"] is None else hits["full_blocks"])

    def rate(self, count: int) -> float:
        """Return a count divided by the seconds that the replay took."""
        return count / max(self.wall_seconds, 1e-9)

    def as_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        shape = self.capacity.shape
        extra: dict[str, Any] = {}
        if shape is not None:
            extra["capacity_gib"] = self.capacity.gib
            extra["kv_shape"] = {
                "name": shape.name,
                "bytes_per_token": shape.bytes_per_token,
                "bytes_per_state": shape.bytes_per_state,
            }
            extra["saved_kv_gib"] = self.capacity.gib_of(self.report["hits"]["token_hits"])
            if self.capacity.gpu is not None:
                extra["gpu"] = self.capacity.gpu.as_json()
        return {
            **self.report,
            "trace": {"source": self.source, **self.trace},
            "capacity_tokens": self.capacity.tokens,
            **extra,
            "saved_prefill_tokens": self.report["hits"]["token_hits"],
            "read_seconds": self.read_seconds,
            "wall_seconds": self.wall_seconds,
            "requests_per_second": self.rate(self.trace["requests"]),
            "blocks_hashed_per_second": self.rate(self.hashed_blocks),
            "peak_memory_bytes": self.peak_memory_bytes,
        }


_DEFINITIONS: Final = {
    "lookup": (
        "lookup mode: each request is looked up, stored and released at once, in the order of the "
        "trace. Published hit rates of traces are defined so.",
        "block hits: blocks of prompts found cached, partial last blocks included. A block counts only if "
        "every block before it in its prompt was found.",
        "full-block hits: the same, of the blocks that a prompt fills.",
        "token hits: share of prompt tokens in blocks found cached.",
    ),
    "engine": (
        "engine mode: requests arrive, wait, run and finish as in a server, in virtual time. Only full "
        "blocks can hit, and the last token of a prompt is always computed. Each request counts once, when "
        "it is first admitted; what a preempted one finds again is counted separately.",
        "block hits: blocks of prompts found cached, out of all, partial last blocks included. A block "
        "counts only if every block before it in its prompt was found.",
        "full-block hits: the same, out of the blocks that a prompt fills.",
        "token hits: share of prompt tokens that need no prefill.",
    ),
}
_LAST_HALF: Final = "last half: token hits of the second half of the trace, when the cache is warm."


def print_report(outcome: Outcome, console: Console) -> None:
    """Print the report as tables that fit a terminal of 80 columns."""
    report = outcome.report
    title = (
        f"{report['mode']} mode, {report['block_size']}-token blocks, {report['algorithm']}, "
        f"{report['eviction']} eviction"
    )
    if report["verify"] != "none":
        title += f", {report['verify']} compared"
    table = Table(box=box.SIMPLE, show_header=False, title=f"kvpool replay: {title}")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for rows in (_trace_rows, _pool_rows, _hit_rows, _engine_rows, _run_rows):
        for row in rows(outcome):
            table.add_row(*(Text(cell) for cell in row))
        table.add_section()
    show(console, table)
    if (engine := report["engine"]) is not None and engine["overloaded"]:
        console.print(Text(_overload(engine)))
        console.print()
    print_replay_tiers(report, console)
    if misses := report.get("misses"):
        show(console, _miss_table(misses))
    definitions = Table(box=box.SIMPLE, show_header=False, title="What the figures mean")
    definitions.add_column(style="bold", no_wrap=True)
    definitions.add_column()
    for line in (*_DEFINITIONS[report["mode"]], _LAST_HALF):
        name, _, text = line.partition(": ")
        definitions.add_row(name, text)
    show(console, definitions)


#: Explanations of the reasons for which tokens had to be computed.
_REASONS: Final = {
    "never-seen": "new: no request before had them",
    "not-remembered": "new, or dropped from the record of earlier prompts",
    "diverged": "in blocks that differ from a prompt before",
    "evicted": "were cached, and evicted",
    "being-computed": "a running request was computing the same",
    "not-computed": "asked for before, but never computed",
    "unreachable": "cached, but a block before them was not",
    "behind": "behind blocks that were new",
    "last-token": "in last blocks that were cached, but for a token",
    "too-short": "fill no block",
    "unserved": "cached in full attention, and not what other groups need",
}


def _miss_table(misses: dict[str, int]) -> Table:
    """Make the table of tokens that had to be computed, by reason, the most frequent first."""
    table = Table(box=box.SIMPLE, show_header=False, title="Why prompt tokens were computed")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    total = sum(misses.values())
    for reason, tokens in sorted(misses.items(), key=lambda item: -item[1]):
        table.add_row(reason, _count(tokens), percent(tokens / total), _REASONS.get(reason, ""))
    return table


def _overload(engine: dict[str, Any]) -> str:
    """Return the warning that more requests arrive than are served, with its effect on the report."""
    return (
        f"The server is overloaded: {figure(engine['arrivals_per_s'], 3)} requests/s arrive, and "
        f"{figure(engine['served_per_s'], 3)} are served while others wait. The queue grows with the "
        f"trace, to {_count(engine['waiting_at_last_arrival'])} when the last one arrives: the time to the "
        "first token is that of the queue, and not of a server that keeps up. More blocks, "
        "--prefill-tokens-per-s or --max-running serve more."
    )


def _trace_rows(outcome: Outcome) -> Iterator[Row]:
    trace = outcome.trace
    made_up = outcome.source == "generated"
    yield (
        "trace",
        "generated" if made_up else "",
        "seed 0; give a file to replay yours" if made_up else shown(outcome.source),
    )
    yield "requests", _count(trace["requests"]), f"arriving over {trace['span_ms'] / 1000:,.1f} s"
    yield "prompt tokens", _count(trace["input_tokens"]), f"longest {_count(trace['longest_input'])}"
    yield "output tokens", _count(trace["output_tokens"]), ""
    different = f"{_count(trace['unique_blocks'])} different"
    yield f"{_count(trace['block_tokens'])}-token blocks", _count(trace["block_references"]), different


def _pool_rows(outcome: Outcome) -> Iterator[Row]:
    capacity, groups = outcome.capacity, outcome.capacity.groups
    if groups is None:
        yield "pool", _count(capacity.blocks), f"blocks, {_count(capacity.tokens or 0)} tokens"
    else:
        longest = "any length" if capacity.tokens is None else f"{_count(capacity.tokens)} tokens"
        yield (
            "pool",
            _count(capacity.blocks),
            f"blocks of {len(groups.groups)} groups: one request of {longest}",
        )
    if capacity.shape is not None and capacity.gib is not None:
        kib, mib = capacity.shape.bytes_per_token / 2**10, capacity.shape.bytes_per_state / 2**20
        state = f", {figure(mib)} MiB per state" if mib else ""
        yield (
            "KV memory",
            f"{capacity.gib:,.2f} GiB",
            f"{capacity.shape.name}, {figure(kib, 5)} KiB per token{state}",
        )
        if capacity.gpu is not None:
            yield "", "", f"of {capacity.gpu.in_words()}"


def _hit_rows(outcome: Outcome) -> Iterator[Row]:
    report, hits = outcome.report, outcome.report["hits"]
    yield "block hits", percent(report["block_hit_rate"]), _of(hits["block_hits"], hits["blocks"])
    full = _of(hits["full_block_hits"], hits["full_blocks"])
    yield "full-block hits", percent(report["full_block_hit_rate"]), full
    yield "token hits", percent(report["token_hit_rate"]), _of(hits["token_hits"], hits["tokens"])
    yield from _group_rows(outcome)
    last = report["last_half"]
    share = _of(last["token_hits"], last["tokens"])
    yield "last half", percent(report["last_half_token_hit_rate"]), share
    gib = outcome.capacity.gib_of(hits["token_hits"])
    kv = "" if gib is None else f", {gib:,.1f} GiB of KV"
    yield "prefill saved", _count(hits["token_hits"]), f"tokens{kv}"
    yield "evictions", _count(report["evicted"]), f"blocks, of {_count(report['allocated'])} allocated"
    if report["collisions"]:
        yield "collisions", _count(report["collisions"]), "hits refused by --verify"


def _group_rows(outcome: Outcome) -> Iterator[Row]:
    """Yield a row for each kind of KV-cache groups: the tokens that these groups alone could have hit.

    A hit needs all groups of a kind, so the row has the lowest rate of them.
    """
    least: dict[str, tuple[float, int]] = {}
    for group in outcome.report.get("groups", []):
        name = group["kind"] if group["span"] is None else f"{group['kind']} {group['span']:,}"
        found = (group["reach_rate"], group["reach_tokens"])
        least[name] = min(least.get(name, found), found)
    for name, (rate, tokens) in least.items():
        yield f"  {name} alone", percent(rate), _of(tokens, outcome.report["hits"]["tokens"])
    unserved: dict[str, int] = {}
    for group in outcome.report.get("groups", []):
        unserved[group["kind"]] = unserved.get(group["kind"], 0) + group.get("unserved_tokens", 0)
    for kind, tokens in unserved.items():
        if tokens:
            yield f"  short for {kind}", _count(tokens), "tokens that full attention had"
    if outcome.report.get("checkpoints"):
        yield "states kept", _count(outcome.report["checkpoints"]), "copies for later requests"


def _engine_rows(outcome: Outcome) -> Iterator[Row]:
    engine = outcome.report["engine"]
    if engine is None:
        return
    yield "virtual time", f"{engine['virtual_seconds']:,.1f} s", f"{_count(engine['steps'])} steps"
    queue = "mean, of a queue that grows" if engine["overloaded"] else "mean, waiting included"
    yield "time to first token", f"{engine['mean_time_to_first_token_ms']:,.0f} ms", queue
    yield "decode", _count(engine["decode_appends"]), "tokens"
    yield "running at once", _count(engine["peak_running"]), "requests, at most"
    yield "waiting at once", _count(engine["peak_waiting"]), "requests, at most"
    yield "preemptions", _count(engine["preemptions"]), "by recompute, when blocks ran out"
    if engine["preemptions"]:
        again = engine["resumed_tokens"] - engine["resumed_token_hits"]
        yield "recomputed", _count(again), f"tokens, of {_count(engine['resumed_tokens'])} resumed"
    if engine["rejected"]:
        yield "rejected", _count(engine["rejected"]), "requests that can never fit the pool"


def _run_rows(outcome: Outcome) -> Iterator[Row]:
    yield "replayed in", f"{outcome.wall_seconds:,.2f} s", f"trace ready in {outcome.read_seconds:,.2f} s"
    yield "requests/s", _count(round(outcome.rate(outcome.trace["requests"]))), ""
    yield "blocks hashed/s", _count(round(outcome.rate(outcome.hashed_blocks))), "blocks of prompts"
    yield "peak memory", f"{outcome.peak_memory_bytes / 2**20:,.0f} MiB", "of this process"


def _count(number: int) -> str:
    return f"{number:,}"


def _of(part: int, whole: int) -> str:
    return f"{_count(part)} of {_count(whole)}"
