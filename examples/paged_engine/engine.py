"""The engine joins a model, the memory of its KV cache, and the scheduler.

The engine owns the KV memory. kvpool decides which block of this memory contains which tokens. The
caller submits requests, and then runs steps until all samples are finished. Each step returns the
tokens that it has sampled.
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

    #: Number of usable blocks of the device's pool, without the null block.
    blocks: int = 512
    #: Number of tokens whose KV fits into a block.
    block_size: int = 16
    #: Blocks of the host tier, to which preempted sequences are swapped. With 0 blocks, they are
    #: recomputed.
    host_blocks: int = 1024
    #: How a sequence is preempted when blocks run out.
    preempt: Literal["swap", "recompute"] = "swap"
    #: Whether computed blocks can be hit by other sequences, and by a sequence that resumes.
    prefix_caching: bool = True
    #: Largest number of tokens that one step computes.
    token_budget: int = 256
    #: Largest number of sequences that run at once.
    max_running: int = 64
    #: Share of the pool's blocks that must remain available for running sequences when a request is
    #: admitted.
    watermark: float = 0.05
    # How many blocks of windows and states stay cached, because a hit can only end at a kept block. A
    # number allows ends at multiples of this number of tokens. "all" allows all ends. "junctions"
    # allows only the ends at which prompts end or diverge.
    keep: Keep = 64
    #: Whether unused KV memory is filled with NaN. Tests use this, so that wrong reads change results.
    poison: bool = False


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A sampled token."""

    #: Number of the request to which the token belongs.
    request: int
    sample: int
    #: Position of the token in the sequence, which begins with the prompt.
    position: int
    token: int
    #: Reason why the sample ends with this token; None if the sample continues.
    finished: Literal["end", "length"] | None
    #: Logits from which the token was drawn.
    logits: Tensor


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters of an engine."""

    steps: int
    #: Number of tokens in the admitted prompts.
    prompt_tokens: int
    #: Number of tokens of admitted prompts that were found in the cache.
    hit_tokens: int
    #: Number of tokens that were computed in prefills. Tokens that are computed again count again.
    prefill_tokens: int
    #: Number of tokens that were not computed, because they were cached when a sequence started or
    #: resumed.
    saved_tokens: int
    #: Number of sampled tokens whose KV was computed.
    decoded_tokens: int
    #: Number of sequences that were moved to the host tier, and number of those that were moved back.
    swapped_out: int
    swapped_in: int
    #: Number of sequences whose blocks were dropped, so that their tokens had to be computed again.
    recomputes: int
    #: Number of shared blocks that the engine copied before a write.
    cow_copies: int
    #: Number of cached blocks that the pool evicted.
    evicted: int
    #: Number of tokens that full attention had cached, but that could not be used because another group
    #: lacked them.
    unserved_tokens: int
    #: Number of copies of recurrent states that were kept for later hits.
    checkpoints: int

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that were cached."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class Engine:
    """An inference engine over kvpool.

    It is a context manager, because it owns memory and threads that copy blocks.

    Args:
        model: The model. Several engines may share a model.
        config: Sizes and policies of the engine.
    """

    def __init__(self, model: Llama, config: EngineConfig | None = None) -> None:
        self.model = model
        self.config = config = config or EngineConfig()
        self.device = model.weights.embedding.device
        # Each tier needs one more block than the engine can use, because block 0 is the null block.
        blocks, host_blocks = config.blocks + 1, config.host_blocks + 1 if config.host_blocks else 0
        self.kv = PagedKV(
            model.config,
            model.groups,
            blocks,
            config.block_size,
            poison=config.poison,
            device=str(self.device),
        )
        # A manager with a single group of full attention needs no specification of groups.
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
        #: Free blocks that were filled with NaN. Tests do this, so that reads of free blocks are
        #: noticed.
        self._poisoned: set[int] = set()
        self._requests = 0
        self._steps = 0
        self._rows = 0

    def submit(self, prompt: list[int], sampling: Sampling) -> Request:
        """Queues a prompt, and returns its request.

        Raises:
            RequestTooLargeError: The pool or the model's context is too small for the request.
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
        """Ends a request whose result is no longer needed. Its computed blocks remain cached."""
        self.scheduler.abort(request)

    def run(self) -> Iterator[TokenEvent]:
        """Runs steps until all requests are finished, and yields their tokens."""
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
        assert not self.config.poison or bool(logits.isfinite().all()), "KV was read that was never written"
        self._steps += 1
        self._rows += len(batch.tokens)
        self.scheduler.commit(chunks)
        sampling = [chunk.sequence for chunk in chunks if chunk.samples]
        return [event for pair in zip(sampling, logits, strict=True) for event in self._sample(*pair)]

    def stats(self) -> EngineStats:
        """Returns the counters of everything that the engine has done so far."""
        manager = self.manager.stats()
        return EngineStats(
            steps=self._steps,
            prompt_tokens=manager.prompt_tokens,
            hit_tokens=manager.hit_tokens,
            # Each token that was passed to the manager was computed in a decode, as one row. All other
            # rows that the model has computed are rows of prefill.
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
        """Waits until all running copies have ended, and releases the memory."""
        self._executor.wait()
        self._transfer.close()
        for store in self._stores:
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _poison(self) -> None:
        """Fills the blocks that became free with NaN.

        This cannot destroy data that is still needed, because all copies that read these blocks have
        finished.
        """
        free = set(self.manager.diagnose.free_order())
        self.kv.poison(free - self._poisoned)
        self._poisoned = free

    def _batch(self, chunks: list[Chunk]) -> Batch:
        """Makes the model's input: one row for each token of the chunks."""
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
        """Draws the next token of a sequence from the logits.

        If the chunk completes the prompt, draws the first token of each sample.
        """
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
