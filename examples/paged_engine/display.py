"""Prints texts while the engine generates them, and the table of the check."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from examples.paged_engine.check import Report
    from examples.paged_engine.checkpoint import Tokenizer
    from examples.paged_engine.engine import Engine, EngineStats
    from examples.paged_engine.request import Hit, Request
    from examples.paged_engine.sampling import Sampling

__all__ = ["Outputs", "check_progress", "generate", "print_outputs", "print_report"]

#: Sampled tokens, by number of the request and number of the sample.
Outputs = dict[tuple[int, int], list[int]]


# --- Generating


class _Screen:
    """A display with the ends of some texts, counts of sequences and blocks, and a progress bar."""

    _TEXTS: Final = 16
    _TAIL: Final = 64

    def __init__(self, engine: Engine, tokenizer: Tokenizer, outputs: Outputs, total: int) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._outputs = outputs
        self._bar = Progress(TextColumn("tokens"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._task = self._bar.add_task("tokens", total=total)

    def __rich__(self) -> Group:
        texts = [
            Text(f"{name(key)}  {one_line(self._tokenizer.decode(tokens[-self._TAIL :]))}", no_wrap=True)
            for key, tokens in sorted(self._outputs.items())[: self._TEXTS]
        ]
        scheduler, pool = self._engine.scheduler, self._engine.manager.stats().pool
        state = (
            f"{len(scheduler.running)} running, {len(scheduler.waiting)} waiting, {len(scheduler.moving)} "
            "moving; "
            f"{pool.active} of {pool.usable} blocks held, {pool.cached_free} cached"
        )
        self._bar.update(self._task, completed=sum(map(len, self._outputs.values())))
        return Group(*texts, Text(state, style="dim"), self._bar)


def generate(
    engine: Engine, tokenizer: Tokenizer, prompts: list[tuple[list[int], Sampling]], *, in_turn: bool = False
) -> tuple[Outputs, list[Request]]:
    """Runs prompts until all are finished. Shows the progress if stderr is a terminal.

    Args:
        engine: The engine that runs the prompts.
        tokenizer: Converts tokens to text.
        prompts: The tokens and sampling parameters of each prompt.
        in_turn: Whether to run the prompts one after the other.

    Returns:
        The tokens of each sample, and the requests in the order of the prompts.
    """
    outputs: Outputs = {}
    requests: list[Request] = []
    console = Console(stderr=True)
    total = sum(sampling.n * sampling.max_tokens for _, sampling in prompts)
    screen = _Screen(engine, tokenizer, outputs, total)
    live = Live(screen, console=console, transient=True, refresh_per_second=10)
    with live if console.is_terminal else contextlib.nullcontext():
        for turn in [[prompt] for prompt in prompts] if in_turn else [prompts]:
            requests += [engine.submit(tokens, sampling) for tokens, sampling in turn]
            for event in engine.run():
                outputs.setdefault((event.request, event.sample), []).append(event.token)
    return outputs, requests


def print_outputs(
    prompts: list[str],
    texts: dict[tuple[int, int], str],
    requests: list[Request],
    names: list[str],
    stats: EngineStats,
) -> None:
    """Prints prompts, their cached tokens, their samples, and the statistics of the engine.

    ``names`` contains the names of the KV-cache groups.
    """
    console = Console(highlight=False)
    for number, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
        console.print(Text(one_line(prompt), style="bold"))
        if request.hit is not None:
            words = (
                f"  {request.hit.cached} of {len(request.prompt)} tokens cached{limits(request.hit, names)}"
            )
            console.print(words, style="dim")
        for key in sorted(key for key in texts if key[0] == number):
            console.print(Text(f"  {name(key)}  {one_line(texts[key])}"))
    console.print(
        f"{stats.prompt_tokens} prompt tokens, {stats.hit_rate:.0%} cached; {stats.decoded_tokens} decoded "
        "in "
        f"{stats.steps} steps; {stats.cow_copies} copies on write, {stats.swapped_out} swaps, "
        f"{stats.recomputes} recomputes",
        style="dim",
    )


def limits(hit: Hit, names: list[str]) -> str:
    """Returns the names of the KV-cache groups that have shortened a hit, as a text."""
    least, most = min(hit.reach), max(hit.reach)
    if hit.cached == most:
        return ""
    alone = ", ".join(f"{name} {reach}" for name, reach in zip(names, hit.reach, strict=True))
    if hit.cached < least:
        return f"; no more is cached in all groups at once: {alone}"
    short = " and ".join(name for name, reach in zip(names, hit.reach, strict=True) if reach == least)
    return f"; {short} had no more: {alone}"


def name(key: tuple[int, int]) -> str:
    """Returns the name of a sample, for example "2.1". It consists of the numbers of request and sample."""
    return f"{key[0]}.{key[1]}"


def one_line(text: str) -> str:
    """Returns a text as one line for a terminal. Line breaks and unprintable characters become dots."""
    return "".join(
        character if character.isprintable() and character != "\ufffd" else "·" for character in text
    )


# --- The check


def check_progress(*, shown: bool) -> Progress:
    """Makes a progress bar for the check, on stderr."""
    columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown)


def print_report(report: Report) -> None:
    """Prints the table of the check, and its result."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("mode", no_wrap=True)
    for column in ("prompt", "hits", "pre-\nfilled", "saved", "swaps", "recom-\nputes", "COW", "s"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("same")
    for outcome in report.outcomes:
        stats = outcome.stats
        figures = ["-"] * 7
        if stats is not None:
            counts = (
                stats.prefill_tokens,
                stats.saved_tokens,
                stats.swapped_out,
                stats.recomputes,
                stats.cow_copies,
            )
            figures = [
                f"{stats.prompt_tokens:,}",
                f"{stats.hit_rate:.0%}",
                *(f"{count:,}" for count in counts),
            ]
        verdict = Text("no", style="bold red") if outcome.difference else Text("yes", style="green")
        table.add_row(outcome.mode, *figures, f"{outcome.seconds:.1f}", verdict)
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "Prompt, prefilled and saved: tokens, including those that a recompute repeats. Hits: share of the "
        "prompts' tokens.\n"
        "Same: every logits row and every token has the bits of the first mode.",
        style="dim",
    )
    if not report.fast:
        console.print(
            f"Kernels of this machine are not batch-invariant: {report.tile} rows at a time.", style="yellow"
        )
    for problem in report.problems:
        console.print(Text(problem, style="bold red"))
    if not report.problems:
        rows = len(report.outcomes[0].rows)
        console.print(
            f"{rows:,} logits rows and tokens, bit-identical in {len(report.outcomes)} modes", style="green"
        )
