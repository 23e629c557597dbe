"""Defines the loads of tools/vllm_bench.py: the requests, the number that run at once, and the size of
the pool.

The same arguments make the same tokens on every machine.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Final

import kvpool
from tools.vllm.bench_models import MODELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

BLOCK_SIZE: Final = 16
TOKEN_BUDGET: Final = 8192  # vLLM's default of max_num_batched_tokens for servers
POOL_BLOCKS: Final = 100_000
TRACE_REQUESTS: Final = 2000
# Ids of output tokens are larger than those of prompt tokens, and depend on request and position.
FIRST_OUTPUT_TOKEN: Final = 1_900_000_000


class LoadError(Exception):
    """A load cannot be made; the message states what to change."""


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One request of a load (the requests that a benchmark runs).

    ``ids`` are the segments of its prompt. Each id stands for ``segment`` tokens. ``length`` is the
    number of tokens of the prompt, and ``outputs`` is the number of generated tokens.
    """

    ids: tuple[int, ...]
    segment: int
    length: int
    outputs: int

    def prompt(self) -> list[int]:
        """Returns the tokens of the prompt. They depend only on ``ids``, so two prompts with the same
        leading ids share a prefix.
        """
        tokens: list[int] = []
        for one in self.ids:
            tokens.extend(range(one * self.segment, (one + 1) * self.segment))
        del tokens[self.length :]
        return tokens


def output_token(job: int, position: int) -> int:
    """Returns the token that the stand-in for the model generates. No two requests get the same
    sequence of tokens.
    """
    return FIRST_OUTPUT_TOKEN + (job * 7919 + position) % 100_000_000


@dataclasses.dataclass(frozen=True)
class Load:
    """The requests and settings of one run.

    The requests in ``warm`` run to their end before anything is timed, to fill the cache. The first
    ``skip_steps`` steps of the requests in ``jobs`` are not timed. The run ends after ``steps`` timed
    steps; with 0 it ends when every request has finished. ``model`` is one of ``bench_models.MODELS``.
    """

    name: str
    title: str
    jobs: tuple[Job, ...]
    max_running: int
    num_blocks: int = POOL_BLOCKS
    token_budget: int = TOKEN_BUDGET
    warm: tuple[Job, ...] = ()
    skip_steps: int = 0
    steps: int = 0
    model: str = "full"

    @property
    def max_model_len(self) -> int:
        """Length of the longest request in tokens, rounded up to whole blocks."""
        longest = max(job.length + job.outputs for job in (*self.warm, *self.jobs))
        return (longest // BLOCK_SIZE + 1) * BLOCK_SIZE

    def check(self) -> None:
        """Raises an error if a request can never run."""
        for number, job in enumerate((*self.warm, *self.jobs)):
            needed = -(-(job.length + job.outputs) // BLOCK_SIZE)
            if needed >= self.num_blocks:
                raise LoadError(
                    f"{self.name}: request {number} takes {needed} blocks, the pool has "
                    f"{self.num_blocks - 1}: "
                    f"take more with --blocks"
                )


def unique(count: int, length: int, outputs: int, first: int = 0) -> tuple[Job, ...]:
    """Makes requests without common prefixes."""
    return tuple(Job((first + number,), length, length, outputs) for number in range(count))


def trace_jobs(lines: Iterable[bytes], segment: int = 512) -> tuple[Job, ...]:
    """Makes the requests of a trace in Mooncake's format."""
    jobs = []
    for line in lines:
        if not line.strip():
            continue
        record = json.loads(line)
        outputs = max(1, record["output_length"])
        length = max(1, record["input_length"])
        ids = tuple(record["hash_ids"]) or (0,)
        jobs.append(Job(ids, segment, length, outputs))
    return tuple(jobs)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The command-line options that define the loads."""

    trace: Path | None = None
    requests: int = TRACE_REQUESTS
    quick: bool = False


def conversation(settings: Settings) -> Load:
    """Makes the load of chats: most of a prompt repeats the earlier conversation. The requests come
    from a trace, or are generated.
    """
    count = min(settings.requests, 150) if settings.quick else settings.requests
    if settings.trace is not None:
        trace = kvpool.traces.Trace.read(settings.trace, limit=count)
        source = f"trace {settings.trace.name}"
    else:
        trace = kvpool.traces.Trace.generate(count, seed=0, chat_fraction=0.8, agent_fraction=0.0)
        source = "generated trace (kvpool generate --seed 0 --chat-fraction 0.8 --agent-fraction 0)"
    jobs = trace_jobs(trace.to_jsonl().splitlines())
    title = (
        f"{source}, {len(jobs):,} requests, 64 running, {POOL_BLOCKS:,} blocks, "
        f"chunks of {TOKEN_BUDGET:,} tokens"
    )
    return Load("conversation", title, jobs, 64)


def short_prompts(settings: Settings) -> Load:
    """Makes the load of many short requests that run at once, so that each step admits, decodes and
    frees.
    """
    count = 1024 if settings.quick else 4096
    return Load(
        "short", f"{count:,} prompts of 64 tokens, 64 output tokens, 512 running", unique(count, 64, 64), 512
    )


def zero_hit(settings: Settings) -> Load:
    """Makes a load without hits. Before it starts, every block of the pool is cached, so each
    allocation has to evict.
    """
    count = 200 if settings.quick else 1000
    blocks = 20_000 if settings.quick else POOL_BLOCKS
    # Each of these requests fills 65 blocks, so that together they have used every block of the pool
    # once.
    warm = unique(blocks // 65 + 64, 1024, 17, first=1_000_000)
    title = f"{count:,} unique prompts of 1,024 tokens, 17 output tokens, {blocks:,} blocks all cached before"
    return Load("zero-hit", title, unique(count, 1024, 17), 64, blocks, warm=warm)


def decode(settings: Settings) -> Load:
    """Makes a load in which 256 requests decode, one token per step."""
    steps = 100 if settings.quick else 400
    jobs = unique(256, 512, steps + 100)
    return Load("decode", f"{steps} decode steps of 256 requests", jobs, 256, skip_steps=40, steps=steps)


def cold_32k(settings: Settings) -> Load:
    """Makes the load of long prompts without cached prefixes. They run one at a time, each in one
    chunk.
    """
    count = 6 if settings.quick else 24
    title = f"{count} cold prompts of 32,768 tokens, one after the other, one chunk each"
    return Load("cold-32k", title, unique(count, 32_768, 1), 1, token_budget=32_768)


def blocked(settings: Settings) -> Load:
    """Makes a load in which the first waiting request has a hit of 32,768 tokens, but does not fit.
    Meanwhile others decode.
    """
    steps = 60 if settings.quick else 240
    warm = (Job((0,), 32_768, 32_768, 1),)
    small = tuple(Job((100 + number,), 512, 512, 300) for number in range(32))
    big = Job((0, 1), 32_768, 32_768 + 16_384, 1)
    title = (
        f"{steps} steps with a blocked request at the head of the queue that hits 32,768 tokens, "
        "32 others decode"
    )
    # Choose the pool's size so that the other requests never evict the blocks of the hit. The hit has
    # 2,049 blocks, the others have 32 x 51, and the large request needs 3,073.
    blocks = 2049 + 32 * 51 + 8
    return Load("blocked", title, (*small, big), 64, blocks, warm=warm, skip_steps=8, steps=steps)


def preempting(settings: Settings) -> Load:
    """Makes a load whose pool is too small for the running requests. Requests are preempted, and later
    resume with hits.
    """
    count = 128 if settings.quick else 512
    title = (
        f"{count} prompts of 256 tokens, 256 output tokens, 64 running, 1,500 blocks: requests are preempted"
    )
    return Load("preempting", title, unique(count, 256, 256), 64, 1500)


def of_model(load: Callable[[Settings], Load], model: str) -> Callable[[Settings], Load]:
    """Makes the same load for a model with several KV-cache groups. The pool is larger, because each
    group takes blocks of its own.
    """

    def make(settings: Settings) -> Load:
        plain = load(settings)
        blocks = plain.num_blocks * len(MODELS[model])
        title = f"{plain.title}; groups of {model}, {blocks:,} blocks"
        return dataclasses.replace(
            plain, name=f"{plain.name}-{model}", title=title, num_blocks=blocks, model=model
        )

    return make


LOADS: Final[dict[str, Callable[[Settings], Load]]] = {
    "conversation": conversation,
    "short": short_prompts,
    "zero-hit": zero_hit,
    "decode": decode,
    "cold-32k": cold_32k,
    "blocked": blocked,
    "preempting": preempting,
    **{
        f"{name}-{model}": of_model(load, model)
        for model in MODELS
        if len(MODELS[model]) > 1
        for name, load in (("conversation", conversation), ("decode", decode), ("preempting", preempting))
    },
}


def make_load(name: str, settings: Settings) -> Load:
    try:
        load = LOADS[name](settings)
    except kvpool.KvpoolError as error:
        raise LoadError(f"{name}: {error}") from error
    load.check()
    return load
