"""Checks that every row of logits and every token has the same bits, whatever the scheduler does.

The check runs engines on prompts with shared prefixes. Each engine has another *mode*: with or without
caching, with large or small chunks, with enough blocks or with preemption by swap or by recompute. The
results of every mode are compared with a plain forward pass of each whole sequence, without cache,
blocks or batch. Unused KV memory is NaN, so that a read of unwritten memory changes the result. For
each row of logits, the check stores a digest of its bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from examples.paged_engine.engine import Engine, EngineConfig, EngineStats
from examples.paged_engine.sampling import Sampling, draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from examples.paged_engine.kv_cache import Keep
    from examples.paged_engine.model import Llama

__all__ = ["Outcome", "Report", "Workload", "check", "modes"]

#: Place of a row of logits: number of the request, number of the sample, and position in the sequence.
Key = tuple[int, int, int]

#: Digest of a logits row, and the token that was drawn from this row.
Row = tuple[bytes, int]

#: Blocks of a pool that is large enough for the whole workload, and of one that is too small for it.
_ROOM: Final = 1024
_TIGHT: Final = 64


@dataclass(frozen=True, slots=True)
class Workload:
    """The prompts of the check, and the sampling parameters of each.

    Groups of prompts have a common prefix.
    """

    prompts: list[list[int]]
    sampling: list[Sampling]

    @classmethod
    def make(cls, vocab_size: int, *, prompts: int, n: int = 4, max_tokens: int = 12) -> Workload:
        """Makes four system prompts, each followed by several questions.

        Some prompts repeat an earlier prompt.
        """
        random = torch.Generator().manual_seed(0)

        def text(least: int, most: int) -> list[int]:
            length = int(torch.randint(least, most + 1, (), generator=random))
            return torch.randint(vocab_size, (length,), generator=random).tolist()

        system = [text(80, 112) for _ in range(4)]
        made: list[list[int]] = []
        for number in range(prompts):
            again = number % 16 == 15
            made.append(list(made[number - 8]) if again else system[number % 4] + text(8, 40))
        return cls(made, [Sampling(n=n, max_tokens=max_tokens, seed=number) for number in range(prompts)])

    @property
    def num_tokens(self) -> int:
        """Number of tokens that are sampled at most, over all prompts."""
        return sum(sampling.n * sampling.max_tokens for sampling in self.sampling)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of the engine in one mode (its settings for blocks, caching and preemption)."""

    mode: str
    seconds: float
    #: Counters of the engine that ran in this mode; None for the plain forward pass, which has no engine.
    stats: EngineStats | None
    rows: dict[Key, Row] = field(repr=False)
    #: Description of the first row of logits that differs from the first mode; None if all are equal.
    difference: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Returns the results of this mode for ``--json``."""
        figures = (
            {} if self.stats is None else dataclasses.asdict(self.stats) | {"hit_rate": self.stats.hit_rate}
        )
        return {
            "mode": self.mode,
            "seconds": round(self.seconds, 3),
            "identical": self.difference is None,
            "difference": self.difference,
            "logits_rows": len(self.rows),
            **figures,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """The results of all modes, and the problems found."""

    #: Number of rows that the model computes together, and whether that is its preferred number.
    tile: int
    fast: bool
    outcomes: list[Outcome]
    #: Descriptions of all failures; empty if the check has passed.
    problems: list[str]

    def as_json(self) -> dict[str, Any]:
        """Returns the whole report for ``--json``."""
        modes = [outcome.as_json() for outcome in self.outcomes]
        return {
            "passed": not self.problems,
            "problems": self.problems,
            "tile_rows": self.tile,
            "fast_tiles": self.fast,
            "modes": modes,
        }


@dataclass(frozen=True, slots=True)
class _Mode:
    """One way to run the engine: its number of blocks, and how it caches, preempts and cuts prompts."""

    name: str
    blocks: int
    prefix_caching: bool
    preempt: Literal["swap", "recompute"] = "swap"
    token_budget: int = 256
    keep: Keep = 64

    @property
    def config(self) -> EngineConfig:
        return EngineConfig(
            blocks=self.blocks,
            token_budget=self.token_budget,
            keep=self.keep,
            host_blocks=_ROOM if self.preempt == "swap" else 0,
            preempt=self.preempt,
            prefix_caching=self.prefix_caching,
            poison=True,
        )


#: The results of every other mode are compared with those of the first mode.
_MODES: Final = (
    _Mode("uncached", _ROOM, prefix_caching=False),
    _Mode("cached", _ROOM, prefix_caching=True),
    _Mode("small chunks", _ROOM, prefix_caching=True, token_budget=50),
    _Mode("swap", _TIGHT, prefix_caching=True),
    _Mode("swap uncached", _TIGHT, prefix_caching=False),
    _Mode("recompute", _TIGHT, prefix_caching=True, preempt="recompute"),
    _Mode("recompute uncached", _TIGHT, prefix_caching=False, preempt="recompute"),
)

# A mode for models with several KV-cache groups. It keeps states only where prompts diverge. So hits
# are shorter, and chunks are longer.
_JUNCTIONS: Final = _Mode("junctions", _ROOM, prefix_caching=True, keep="junctions")


def modes(model: Llama) -> tuple[_Mode, ...]:
    """Returns the modes of the engine in which the check runs a model.

    The plain forward pass is not one of them.
    """
    return (*_MODES, _JUNCTIONS) if len(model.groups) > 1 else _MODES


def check(model: Llama, workload: Workload, *, on_tokens: Callable[[str, int], None] | None = None) -> Report:
    """Runs the workload in all modes and compares the results.

    Args:
        model: The model.
        workload: The prompts.
        on_tokens: Called after tokens were sampled, with the mode and the number of tokens.
    """
    fast = model.choose_tile()
    report_tokens = on_tokens or (lambda _mode, _tokens: None)
    outcomes: list[Outcome] = []
    problems: list[str] = []
    for mode in modes(model):
        outcome = _run(model, workload, mode, report_tokens)
        outcomes.append(_compared(outcome, outcomes))
        problems += _shortfalls(model, mode, outcome)
    outcomes.append(_compared(_run_plain(model, workload, outcomes[0].rows, report_tokens), outcomes))
    problems += [f"{outcome.mode}: {outcome.difference}" for outcome in outcomes if outcome.difference]
    return Report(model.tile, fast, outcomes, problems)


def _run(model: Llama, workload: Workload, mode: _Mode, report_tokens: Callable[[str, int], None]) -> Outcome:
    """Runs the workload through an engine."""
    began, rows = time.perf_counter(), {}
    with Engine(model, mode.config) as engine:
        for prompt, sampling in zip(workload.prompts, workload.sampling, strict=True):
            engine.submit(prompt, sampling)
        for event in engine.run():
            rows[event.request, event.sample, event.position] = (_digest(event.logits), event.token)
            report_tokens(mode.name, 1)
        engine.manager.diagnose.check_invariants()
        held = engine.manager.stats().pool.active
        assert held == 0, f"{held} blocks are still held when all requests are over"
        return Outcome(mode.name, time.perf_counter() - began, engine.stats(), rows)


def _run_plain(
    model: Llama, workload: Workload, sampled: dict[Key, Row], report_tokens: Callable[[str, int], None]
) -> Outcome:
    """Computes each sample in one pass over the whole sequence, and draws all its tokens again."""
    began, rows = time.perf_counter(), {}
    outputs: dict[tuple[int, int], list[int]] = {}
    for (request, sample, _), (_, token) in sorted(sampled.items()):
        outputs.setdefault((request, sample), []).append(token)
    for (request, sample), output in outputs.items():
        prompt = workload.prompts[request]
        logits = model.forward_plain([*prompt, *output[:-1]])[len(prompt) - 1 :]
        for position, row in enumerate(logits, start=len(prompt)):
            token = draw(row, workload.sampling[request], sample=sample, position=position)
            rows[request, sample, position] = (_digest(row), token)
        report_tokens("plain forward", len(output))
    return Outcome("plain forward", time.perf_counter() - began, None, rows)


def _compared(outcome: Outcome, before: list[Outcome]) -> Outcome:
    """Compares the results of a mode with those of the first mode, and returns them with the difference."""
    if not before:
        return outcome
    expected = before[0].rows
    for key in sorted(expected.keys() | outcome.rows.keys()):
        one, other = expected.get(key), outcome.rows.get(key)
        if one != other:
            difference = (
                f"request {key[0]}, sample {key[1]}, position {key[2]}: {_words(one)}, here {_words(other)}"
            )
            return dataclasses.replace(outcome, difference=difference)
    return outcome


def _shortfalls(model: Llama, mode: _Mode, outcome: Outcome) -> list[str]:
    """Returns the features that a mode did not use although it should, such as hits or preemptions."""
    stats = outcome.stats
    assert stats is not None
    wanted = {
        "the cache was never hit": stats.hit_tokens > 0 or not mode.prefix_caching,
        "the cache was hit, though it is off": stats.saved_tokens == 0 or mode.prefix_caching,
        "nothing was preempted by swap": stats.swapped_out > 0
        or mode.blocks == _ROOM
        or mode.preempt != "swap",
        "nothing was preempted by recompute": stats.recomputes > 0
        or mode.blocks == _ROOM
        or mode.preempt == "swap",
        "a pool with room has preempted": mode.blocks != _ROOM or not (stats.swapped_out or stats.recomputes),
        "not all swaps came back": stats.swapped_out == stats.swapped_in,
        "nothing was copied on write": stats.cow_copies > 0,
        "nothing was evicted": stats.evicted > 0 or mode.blocks == _ROOM or not mode.prefix_caching,
        "no state was kept": (
            stats.checkpoints > 0 or not mode.prefix_caching or not any(group.state for group in model.groups)
        ),
        "every hit was as long as that of full attention": stats.unserved_tokens > 0
        or mode.keep != "junctions",
        "computed and cached tokens are not the prompts'": (
            mode.blocks != _ROOM or stats.prefill_tokens + stats.saved_tokens == stats.prompt_tokens
        ),
    }
    return [f"{mode.name}: {problem}" for problem, holds in wanted.items() if not holds]


def _digest(logits: Tensor) -> bytes:
    return hashlib.blake2b(logits.contiguous().cpu().numpy().tobytes(), digest_size=16).digest()


def _words(row: Row | None) -> str:
    return "no such row" if row is None else f"logits {row[0].hex()[:12]}, token {row[1]}"
