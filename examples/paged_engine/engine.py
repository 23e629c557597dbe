"""The engine: a model, the memory of its KV cache, and the scheduler, joined.

The engine owns the bytes, kvpool decides which blocks they are in. A request is submitted, and the
engine stepped until its samples are over; each step streams the tokens that it has sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import torch
from torch.nn.utils.rnn import pad_sequence

from examples.paged_engine.kv_cache import PagedKV
from examples.paged_engine.model import Batch
from examples.paged_engine.request import Request, RequestTooLargeError
from examples.paged_engine.sampling import draw
from examples.paged_engine.scheduler import Scheduler
from kvpool import CacheManager
from kvpool.transfer import BlockStore, PlanExecutor, TransferEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from examples.paged_engine.kv_cache import Keep
    from examples.paged_engine.model import Llama
    from examples.paged_engine.request import Chunk, Sequence
    from examples.paged_engine.sampling import Sampling

__all__ = ["Engine", "EngineConfig", "EngineStats", "TokenEvent"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and policies of an engine."""

    #: Blocks of the device's pool that can be used.
    blocks: int = 512
    #: Token slots per block.
    block_size: int = 16
    #: Blocks of the host tier, where preempted sequences are swapped to; without any, they recompute.
    host_blocks: int = 1024
    #: How a sequence gives way when blocks run out.
    preempt: Literal["swap", "recompute"] = "swap"
    #: Whether what is computed can be hit by others, and by a sequence that comes back.
    prefix_caching: bool = True
    #: Tokens that one step computes, at most.
    token_budget: int = 256
    #: Sequences that run at once, at most.
    max_running: int = 64
    #: Share of the pool that an admission leaves to the sequences that run.
    watermark: float = 0.05
    # : What stays cached of windows and states, so that hits can end there: all; what hits need that
    # end at multiples of : so many tokens; or where prompts end or turn off from each other.
    keep: Keep = 64
    #: Whether KV memory that holds nothing is NaN, which shows whoever reads it: for tests.
    poison: bool = False


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A token that was sampled."""

    #: Number of the request.
    request: int
    sample: int
    #: Position in the sequence, prompt included.
    position: int
    token: int
    #: Why the sample is over with it, if it is.
    finished: Literal["end", "length"] | None
    #: What it was drawn from.
    logits: Tensor


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What an engine has done so far."""

    steps: int
    #: Tokens of the admitted prompts.
    prompt_tokens: int
    #: Of these, tokens that were cached.
    hit_tokens: int
    #: Tokens that prefill has computed, those computed again included.
    prefill_tokens: int
    #: Tokens that it did not have to compute, because they were cached when a sequence came in or came back.
    saved_tokens: int
    #: Sampled tokens that were computed.
    decoded_tokens: int
    #: Sequences that gave way by swap, and how many of them came back.
    swapped_out: int
    swapped_in: int
    #: Sequences that gave way by recompute.
    recomputes: int
    #: Shared blocks that were copied to be written.
    cow_copies: int
    #: Cached blocks that were taken to hold something else.
    evicted: int
    #: Tokens that full attention had cached, and another group could not serve.
    unserved_tokens: int
    #: Copies of states that were kept.
    checkpoints: int

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that were cached."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class Engine:
    """An inference engine over kvpool. A context manager: it has threads that move blocks, and memory
    of its own.

    Args:
        model: The model. Engines may share it.
        config: Sizes and policies.

    """

    def __init__(self, model: Llama, config: EngineConfig | None = None) -> None:
        self.model = model
        self.config = config = config or EngineConfig()
        self.device = model.weights.embedding.device
        # Block 0 is the null block: one more than can be used, in each tier.
        blocks, host_blocks = config.blocks + 1, config.host_blocks + 1 if config.host_blocks else 0
        self.kv = PagedKV(
            model.config,
            model.groups,
            blocks,
            config.block_size,
            poison=config.poison,
            device=str(self.device),
        )
        # One group of full attention needs no name.
        specs = [group.spec(config.block_size, config.keep) for group in model.groups]
        self.manager = CacheManager(
            blocks,
            config.block_size,
            host_blocks=host_blocks,
            watermark=config.watermark,
            block_bytes=self.kv.block_bytes,
            groups=specs if len(specs) > 1 else None,
        )
        self._stores = [BlockStore.from_tensors(self.kv.pages, block_dim=1)]
        if host_blocks:
            self._stores.append(BlockStore.host(host_blocks, like=self._stores[0]))
        self._transfer = TransferEngine(str(self.device))
        self._executor = PlanExecutor(self.manager, self._transfer, self._stores)
        self.scheduler = Scheduler(
            self.manager,
            self._executor,
            model.groups,
            preempt=config.preempt if host_blocks else "recompute",
            token_budget=config.token_budget,
            max_running=config.max_running,
            prefix_caching=config.prefix_caching,
            on_new_blocks=self.kv.poison if config.poison else None,
        )
        #: Free blocks that are NaN.
        self._poisoned: set[int] = set()
        self._requests = 0
        self._steps = 0
        self._rows = 0

    def submit(self, prompt: list[int], sampling: Sampling) -> Request:
        """Queues a prompt.

        Raises:
            RequestTooLargeError: It could never run: the pool or the model's context is too small for it.
            ValueError: The prompt is empty, or has a token that the model does not know.

        """
        vocabulary, positions = self.model.config.vocab_size, self.model.config.max_positions
        if not prompt:
            raise ValueError("the prompt is empty")
        if not 0 <= min(prompt) <= max(prompt) < vocabulary:
            raise ValueError(f"the prompt has a token outside the model's vocabulary of {vocabulary}")
        if len(prompt) + sampling.max_tokens - 1 > positions:
            lengths = f"a prompt of {len(prompt)} tokens and {sampling.max_tokens} more"
            raise RequestTooLargeError(f"{lengths} exceed the model's {positions} positions")
        request = Request(self._requests, list(prompt), sampling, self.manager.prepare(prompt))
        self.scheduler.submit(request)
        self._requests += 1
        return request

    def abort(self, request: Request) -> None:
        """Ends a request that nobody waits for any more. What it has computed stays cached."""
        self.scheduler.abort(request)

    def run(self) -> Iterator[TokenEvent]:
        """Steps until all requests are over, and streams their tokens."""
        while self.scheduler.busy:
            yield from self.step()

    def step(self) -> list[TokenEvent]:
        """Runs one step and returns the tokens that it has sampled."""
        chunks = self.scheduler.schedule()
        if not chunks:
            return []
        if self.config.poison:
            self._poison()
        batch = self._batch(chunks)
        logits = self.model.forward(batch, self.kv)
        assert not self.config.poison or bool(logits.isfinite().all()), "KV was read that nobody had written"
        self._steps += 1
        self._rows += len(batch.tokens)
        self.scheduler.commit(chunks)
        sampling = [chunk.sequence for chunk in chunks if chunk.samples]
        return [event for pair in zip(sampling, logits, strict=True) for event in self._sample(*pair)]

    def stats(self) -> EngineStats:
        """Returns what was done so far."""
        manager = self.manager.stats()
        return EngineStats(
            steps=self._steps,
            prompt_tokens=manager.prompt_tokens,
            hit_tokens=manager.hit_tokens,
            # Each token that has been appended was computed once as a decode; all other rows are prefill.
            prefill_tokens=self._rows - manager.appended_tokens,
            saved_tokens=manager.hit_tokens + manager.resumed_hit_tokens,
            decoded_tokens=manager.appended_tokens,
            swapped_out=manager.swapped_out,
            swapped_in=manager.swapped_in,
            recomputes=manager.preemptions,
            cow_copies=self.scheduler.cow_copies,
            evicted=manager.pool.evicted,
            unserved_tokens=manager.unserved_tokens,
            checkpoints=manager.checkpoints,
        )

    def close(self) -> None:
        """Waits for copies that are under way, and lets go of the memory."""
        self._executor.wait()
        self._transfer.close()
        for store in self._stores:
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _poison(self) -> None:
        """Makes blocks NaN that became free: all copies that read them are done."""
        free = set(self.manager.free_order())
        self.kv.poison(free - self._poisoned)
        self._poisoned = free

    def _batch(self, chunks: list[Chunk]) -> Batch:
        """Makes rows of chunks, one per token."""
        counts = torch.tensor([chunk.rows for chunk in chunks])
        tokens = [token for chunk in chunks for token in chunk.sequence.tokens[chunk.start : chunk.stop]]
        positions = [position for chunk in chunks for position in range(chunk.start, chunk.stop)]
        tables = []
        for group in range(len(self.model.groups)):
            own = [torch.tensor(chunk.sequence.tables[group]) for chunk in chunks]
            padded = pad_sequence(own, batch_first=True, padding_value=self.kv.padding)
            tables.append(padded.repeat_interleave(counts, dim=0))
        last_rows = counts.cumsum(0) - 1
        return Batch(
            tokens=torch.tensor(tokens),
            positions=torch.tensor(positions),
            tables=tables,
            wanted=last_rows[torch.tensor([chunk.samples for chunk in chunks])],
        ).to(self.device)

    def _sample(self, sequence: Sequence, logits: Tensor) -> Iterator[TokenEvent]:
        """Draws the next token of a sequence; after the prompt, the first one of each sample."""
        request, position = sequence.request, len(sequence.tokens)
        first = position == len(request.prompt)
        for sample in self.scheduler.branch(sequence) if first else [sequence]:
            token = draw(logits, request.sampling, sample=sample.sample, position=position)
            sample.tokens.append(token)
            finished: Literal["end", "length"] | None = None
            if token in self.model.config.end_tokens:
                finished = "end"
            elif position + 1 == len(request.prompt) + request.sampling.max_tokens:
                finished = "length"
            if finished:
                self.scheduler.finish(sample)
            yield TokenEvent(request.number, sample.sample, position, token, finished, logits)
