"""Drives vLLM's KV-cache manager like vLLM's asynchronous scheduler, and times the calls.

The objects are of vLLM's classes: ``Request``, the request hasher, ``KVCacheManager``. This module adds
a scheduler without a model. Every request that has finished its prefill gets a token in each step, one
step after it was scheduled, as with ``async_scheduling``. The calls of a step, their order and their
arguments are those of vLLM's ``Scheduler.schedule`` and ``update_from_output`` for a model with full
attention, without connectors or speculation.
"""

from __future__ import annotations

import gc
import importlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from tools.vllm.bench_loads import Job, Load, output_token
from tools.vllm.bench_stats import (
    ALLOCATE,
    APPEND,
    DECODE,
    EVENTS,
    FREE,
    HASH,
    IDS,
    LOOKUP,
    OTHER,
    BenchError,
    Counts,
    Ledger,
    Run,
    Timings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AHEAD: Final = 4  # requests that wait in addition to those that run


class Pending:
    """Requests that were scheduled in a step whose output has not arrived yet."""

    __slots__ = ("samples", "tokens")

    def __init__(self) -> None:
        self.tokens: list[tuple[Any, int]] = []
        self.samples: set[str] = set()


class Driver:
    """A scheduler without a model, which calls one KV-cache manager."""

    def __init__(
        self,
        load: Load,
        manager: Any,
        hasher: Any,
        events: bool,
        publish: Callable[[list[Any]], None] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        request = importlib.import_module("vllm.v1.request")
        self.new_request: Any = request.Request
        self.status: Any = request.RequestStatus
        self.sampling: Any = importlib.import_module("vllm.sampling_params").SamplingParams
        self.load = load
        self.manager = manager
        self.hasher = hasher
        self.records_events = events
        self.publish = publish
        #: The clock that times the calls, in nanoseconds.
        self.clock = clock
        self.waiting: deque[Any] = deque()
        self.running: list[Any] = []
        self.pending: Pending | None = None
        self.jobs: dict[str, tuple[int, Job]] = {}
        self.source: Iterator[Job] = iter(())
        self.number = 0
        self.done = 0
        self.timings = Timings()
        self.ledger = Ledger()
        self.cached_tokens = self.prompt_tokens = self.output_tokens = 0
        self.preemptions = self.refusals = self.events = 0

    # --- Requests

    def arrive(self) -> None:
        """Adds new requests until enough of them wait. Most of this time is spent on hashing the
        prompts.
        """
        clock = self.clock
        while len(self.waiting) + len(self.running) < self.load.max_running + AHEAD:
            job = next(self.source, None)
            if job is None:
                return
            self.number += 1
            name = f"request-{self.number:08}"
            prompt = job.prompt()
            sampling = self.sampling(max_tokens=job.outputs, ignore_eos=True)
            begun = clock()
            request = self.new_request(
                name, prompt, sampling, None, arrival_time=0.0, block_hasher=self.hasher
            )
            self.timings.spent[HASH] += clock() - begun
            self.timings.calls[HASH] += 1
            self.jobs[name] = (self.number, job)
            self.waiting.append(request)
            self.prompt_tokens += job.length

    def preempt(self, request: Any) -> None:
        """Frees the blocks of a request, and puts it back at the head of the queue."""
        clock = self.clock
        begun = clock()
        self.manager.free(request)
        self.timings.spent[FREE] += clock() - begun
        self.timings.calls[FREE] += 1
        request.status = self.status.PREEMPTED
        request.num_computed_tokens = 0
        request.drop_stale_output = False
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.num_output_placeholders = 0
        request.num_preemptions += 1
        self.waiting.appendleft(request)
        self.preemptions += 1

    # --- A step

    def schedule(self) -> Pending:
        """Does the work of one ``Scheduler.schedule``."""
        clock = self.clock
        manager, timings = self.manager, self.timings
        begun = clock()
        manager.new_step_starts()
        timings.spent[OTHER] += clock() - begun
        timings.calls[OTHER] += 1
        budget = self.load.token_budget
        scheduled: list[tuple[Any, int, Any]] = []
        budget, preempted = self.schedule_running(budget, scheduled)
        num_running = len(scheduled)
        if not preempted:
            self.schedule_waiting(budget, scheduled)
        # List the new requests first, as vLLM's scheduler output does. For a running request, None
        # means that it has no new blocks.
        for request, _, blocks in scheduled[num_running:]:
            begun = clock()
            ids = blocks.get_block_ids()
            timings.spent[IDS] += clock() - begun
            self.ledger.add(self.jobs[request.request_id][0], ids)
        spent = 0
        for request, _, blocks in scheduled[:num_running]:
            begun = clock()
            ids = blocks.get_block_ids(allow_none=True)
            spent += clock() - begun
            if ids is not None:
                self.ledger.add(self.jobs[request.request_id][0], ids)
        timings.spent[IDS] += spent
        timings.calls[IDS] += len(scheduled)
        begun = clock()
        manager.take_boundary_state_offloads()
        copies, _ = manager.take_kv_cache_block_copies()
        manager.take_new_block_ids()
        timings.spent[OTHER] += clock() - begun
        timings.calls[OTHER] += 1
        if copies:
            raise BenchError("the manager wants blocks copied: full attention shares whole blocks only")
        pending = Pending()
        for request, tokens, _ in scheduled:
            pending.tokens.append((request, tokens))
            request.num_computed_tokens += tokens
            request.num_in_flight_tokens += tokens
            chunk = request.num_computed_tokens < request.num_tokens + request.num_output_placeholders
            request.is_prefill_chunk = chunk
            if not chunk:
                request.num_output_placeholders += 1
                pending.samples.add(request.request_id)
        return pending

    def schedule_running(self, budget: int, scheduled: list[tuple[Any, int, Any]]) -> tuple[int, bool]:
        """Allocates slots for running requests. If there is no room, preempts the last running request."""
        clock = self.clock
        allocate = self.manager.allocate_slots
        spent, calls = [0, 0], [0, 0]
        preempted = False
        index = 0
        max_len = self.load.max_model_len
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            computed, placeholders = request.num_computed_tokens, request.num_output_placeholders
            if (
                placeholders > 0
                and computed + 2 - placeholders >= request.num_prompt_tokens + request.max_tokens
            ):
                index += 1
                continue
            tokens = min(
                request.num_tokens_with_spec + placeholders - computed, budget, max_len - computed - 1
            )
            if tokens <= 0:
                index += 1
                continue
            kind = tokens > 1
            while True:
                begun = clock()
                blocks = allocate(request, tokens, num_lookahead_tokens=0)
                spent[kind] += clock() - begun
                calls[kind] += 1
                if blocks is not None:
                    break
                victim = self.running.pop()
                self.preempt(victim)
                preempted = True
                if victim is request:
                    break
            if blocks is None:
                break
            scheduled.append((request, tokens, blocks))
            budget -= tokens
            index += 1
        for phase, kind in ((DECODE, 0), (ALLOCATE, 1)):
            self.timings.spent[phase] += spent[kind]
            self.timings.calls[phase] += calls[kind]
        return budget, preempted

    def schedule_waiting(self, budget: int, scheduled: list[tuple[Any, int, Any]]) -> None:
        """Admits waiting requests in the order of arrival, until a request does not fit."""
        clock = self.clock
        manager, timings = self.manager, self.timings
        skipped: list[Any] = []
        while budget > 0 and self.waiting and len(self.running) < self.load.max_running:
            request = self.waiting[0]
            if request.num_stale_output_tokens:
                skipped.append(self.waiting.popleft())
                continue
            begun = clock()
            hit, hit_tokens, request.shared_prefix_boundary = manager.get_computed_blocks(request)
            timings.spent[LOOKUP] += clock() - begun
            timings.calls[LOOKUP] += 1
            tokens = min(request.num_tokens - hit_tokens, budget)
            begun = clock()
            blocks = manager.allocate_slots(
                request,
                tokens,
                num_new_computed_tokens=hit_tokens,
                new_computed_blocks=hit,
                num_lookahead_tokens=0,
                num_external_computed_tokens=0,
                delay_cache_blocks=False,
                skip_zeroing_group_ids=(),
                num_encoder_tokens=0,
                full_sequence_must_fit=True,
                reserved_blocks=0,
                has_scheduled_reqs=bool(self.running),
            )
            timings.spent[ALLOCATE] += clock() - begun
            timings.calls[ALLOCATE] += 1
            if blocks is None:
                self.refusals += 1
                break
            begun = clock()
            manager.record_prefix_cache_stats(request, hit_tokens)
            timings.spent[OTHER] += clock() - begun
            timings.calls[OTHER] += 1
            self.running.append(self.waiting.popleft())
            begun = clock()
            whole = manager.get_blocks(request.request_id)
            timings.spent[ALLOCATE] += clock() - begun
            timings.calls[ALLOCATE] += 1
            scheduled.append((request, tokens, whole))
            budget -= tokens
            request.status = self.status.RUNNING
            request.num_computed_tokens = hit_tokens
            self.cached_tokens += hit_tokens
        self.waiting.extendleft(reversed(skipped))

    def update(self, pending: Pending) -> None:
        """Does the work of one ``Scheduler.update_from_output``: processes the tokens of the previous
        step.
        """
        clock = self.clock
        manager, timings, status = self.manager, self.timings, self.status
        append_ns = cache_ns = appended = cached = 0
        finished: set[str] = set()
        for request, tokens in pending.tokens:
            request.num_in_flight_tokens -= tokens
            stale = request.num_stale_output_tokens > 0
            if stale:
                request.num_stale_output_tokens -= tokens
            if request.request_id not in pending.samples:
                continue
            number, _ = self.jobs[request.request_id]
            token = output_token(number, request.num_output_tokens)
            runs = request.status == status.RUNNING
            begun = clock()
            request.append_output_token_ids(token)
            append_ns += clock() - begun
            appended += 1
            stopped = request.num_output_tokens >= request.max_tokens
            if stopped:
                request.status = status.FINISHED_LENGTH_CAPPED
            if not stale:
                request.num_output_placeholders -= 1
            if runs:
                computed = request.num_computed_tokens - request.num_output_placeholders
                begun = clock()
                manager.cache_blocks(request, computed)
                cache_ns += clock() - begun
                cached += 1
            if request.take_prefill_stats() is not None:
                begun = clock()
                manager.estimate_cached_tokens(request)
                timings.spent[OTHER] += clock() - begun
                timings.calls[OTHER] += 1
            if stopped:
                begun = clock()
                manager.free(request)
                timings.spent[FREE] += clock() - begun
                timings.calls[FREE] += 1
                finished.add(request.request_id)
        timings.spent[APPEND] += append_ns
        timings.calls[APPEND] += appended
        timings.spent[DECODE] += cache_ns
        timings.calls[DECODE] += cached
        self.output_tokens += appended
        if finished:
            self.remove(finished)
        begun = clock()
        taken = manager.take_events()
        if taken and self.publish is not None:
            self.publish(taken)
        timings.spent[EVENTS] += clock() - begun
        timings.calls[EVENTS] += 1
        if self.records_events:
            self.events += len(taken)
        begun = clock()
        manager.make_prefix_cache_stats()
        _ = manager.usage
        timings.spent[OTHER] += clock() - begun
        timings.calls[OTHER] += 1

    def remove(self, finished: set[str]) -> None:
        """Removes finished requests from the lists. A request whose last token was still in flight may
        have been preempted meanwhile.
        """
        self.running = [one for one in self.running if one.request_id not in finished]
        if any(one.request_id in finished for one in self.waiting):
            self.waiting = deque(one for one in self.waiting if one.request_id not in finished)
        for name in finished:
            del self.jobs[name]
        self.done += len(finished)

    def step(self) -> bool:
        """Schedules one step, and then processes the output of the previous step. Returns False if no
        work remains.
        """
        self.arrive()
        if not (self.waiting or self.running or self.pending):
            return False
        timings = self.timings
        spent, calls = timings.step_sum(), timings.call_sum()
        pending = self.schedule()
        if self.pending is not None:
            self.update(self.pending)
        elif not pending.tokens:
            raise BenchError(
                f"{self.load.name}: nothing can run and nothing is under way: the pool is too small"
            )
        self.pending = pending if pending.tokens else None
        timings.end_step(spent, calls)
        self.ledger.end_step()
        return True

    def run(self, tick: Callable[[int], None]) -> Run:
        """Runs all requests of the load. Calls ``tick`` regularly with the number of finished requests."""
        load = self.load
        self.source = iter(load.warm)
        while self.step():
            pass
        self.source = iter(load.jobs)
        for _ in range(load.skip_steps):
            self.step()
        steps = len(self.ledger.steps)
        self.timings = timings = Timings()
        self.cached_tokens = self.prompt_tokens = self.output_tokens = 0
        self.done = self.preemptions = self.refusals = self.events = 0
        begun = last = time.perf_counter()

        collecting = 0

        def collected(phase: str, _: dict[str, int]) -> None:
            nonlocal collecting
            if phase == "start":
                collecting = self.clock()
            else:
                timings.gc_runs += 1
                timings.gc_ns += self.clock() - collecting

        gc.callbacks.append(collected)
        try:
            while not (load.steps and len(timings.steps) >= load.steps) and self.step():
                if len(timings.steps) % 64 == 0 and time.perf_counter() - last > 1.0:
                    tick(self.done)
                    last = time.perf_counter()
        finally:
            gc.callbacks.remove(collected)
        return Run(
            timings=timings,
            counts=Counts(
                steps=len(self.ledger.steps) - steps,
                requests=self.done,
                prompt_tokens=self.prompt_tokens,
                cached_tokens=self.cached_tokens,
                output_tokens=self.output_tokens,
                preemptions=self.preemptions,
                refusals=self.refusals,
            ),
            ledger=self.ledger.steps,
            seconds=time.perf_counter() - begun,
            events=self.events,
        )
