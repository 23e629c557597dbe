"""Makes random configurations of KV-cache groups for the self-test of the shadow, and requests like
those of a scheduler.

The self-test runs in a real vLLM. It compares kvpool's lookups, admissions, steps, caching and frees
with those of vLLM's own coordinator and managers. The configurations combine full attention, windows,
chunks and states. They also vary block sizes, hashes of less than a block, EAGLE and MTP, the retention
of windows and states, context parallelism, metrics, and events.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

if TYPE_CHECKING:
    from types import SimpleNamespace

UNIT: Final = 4
MODEL_LEN: Final = 512
TOKEN: Final = 50_000_000


class Configuration:
    """A random configuration of KV-cache groups, computed from a seed. In practice, a configuration
    follows from the model, the draft model and the engine's options.
    """

    def __init__(self, vllm: SimpleNamespace, seed: int) -> None:
        self.source = source = random.Random(seed)
        self.vllm = vllm
        self.blocks = source.randrange(30, 120)
        self.dcp = 1
        self.use_eagle = source.random() < 0.4
        #: Whether the configuration exports states within chunks. vLLM's own managers then handle the
        #: states, over kvpool's pool.
        self.is_left_to_vllm = seed % 8 == 0
        self.kinds = ["full", "window", "mamba"] if self.is_left_to_vllm else self._kinds()
        sizes = [self._size(kind) for kind in self.kinds]
        if "chunked" in self.kinds:
            # vLLM refuses a group with chunked attention if another group has another block size, or
            # with EAGLE.
            self.use_eagle, sizes = False, [sizes[0]] * len(sizes)
        elif set(self.kinds) <= {"full", "mamba"} and source.random() < 0.2:
            self.dcp = 2
        self.specs = [self._spec(kind, size) for kind, size in zip(self.kinds, sizes, strict=True)]
        effective = [
            size * self.dcp if kind == "full" else size for kind, size in zip(self.kinds, sizes, strict=True)
        ]
        self.scheduler_block = math.lcm(*effective)
        self.hash_block = math.gcd(*effective)
        if len(effective) > 1 and source.random() < 0.3:
            self.hash_block = UNIT
        self.retention = None
        if any(kind in ("window", "mamba") for kind in self.kinds):
            self.retention = source.choice([None, 0, 0, self.scheduler_block, 3 * self.scheduler_block])
        self.lookahead = source.choice([0, 1, 2]) if self.use_eagle else 0
        self.metrics = source.random() < 0.2
        self.events = source.random() < 0.4

    def _kinds(self) -> list[str]:
        source = self.source
        first = source.choice(["full", "full", "full", "window", "mamba"])
        others = source.choice([["window"], ["window", "mamba"], ["mamba"], ["chunked"], ["full", "window"]])
        count = source.choice([0, 1, 1, 2, 3])
        return [first, *(source.choice(others) for _ in range(count))]

    def _size(self, kind: str) -> int:
        return UNIT * self.source.choice([1, 2, 2, 4] if kind != "mamba" else [2, 4, 4, 6])

    def _spec(self, kind: str, size: int) -> Any:
        vllm, source = self.vllm, self.source
        attention = {"block_size": size, "num_kv_heads": 1, "head_size": 1, "dtype": vllm.torch.float32}
        if kind == "full":
            return vllm.FullAttentionSpec(**attention)
        if kind == "window":
            window = source.choice([1, 2, size, 2 * size + 1, 5 * size])
            retained = source.choice([0, 0, 3])
            return vllm.SlidingWindowSpec(**attention, sliding_window=window, extra_retained_tokens=retained)
        if kind == "chunked":
            return vllm.ChunkedLocalAttentionSpec(
                **attention, attention_chunk_size=size * source.choice([2, 3, 8])
            )
        shapes: dict[str, Any] = {
            "shapes": ((1, 1),),
            "dtypes": (vllm.torch.float32,),
            "mamba_cache_mode": "align",
        }
        drafts = source.choice([0, 1, 2]) if self.use_eagle else 0
        if self.is_left_to_vllm:
            shapes |= {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": UNIT}
        return vllm.MambaSpec(block_size=size, num_speculative_blocks=drafts, **shapes)

    def manager(self) -> Any:
        """Makes vLLM's manager. The shadow gives it a mirror, a pool of kvpool that gets the same
        calls.
        """
        vllm, source = self.vllm, self.source
        flags = [self.use_eagle and source.random() < 0.5 for _ in self.specs]
        groups = [
            vllm.KVCacheGroupSpec([f"layer {number}"], spec, is_eagle_group=flag)
            for number, (spec, flag) in enumerate(zip(self.specs, flags, strict=True))
        ]
        config = vllm.KVCacheConfig(
            num_blocks=self.blocks,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
            prefix_cache_retention_interval=self.retention,
        )
        more: dict[str, Any] = {"dcp_world_size": self.dcp}
        if self.metrics:
            more["metrics_collector"] = vllm.KVCacheMetricsCollector(0.5)
        return vllm.ShadowKVCacheManager(
            config,
            max_model_len=MODEL_LEN,
            scheduler_block_size=self.scheduler_block,
            hash_block_size=self.hash_block,
            use_eagle=self.use_eagle,
            num_prefill_lookahead=self.lookahead if self.scheduler_block >= self.lookahead else 0,
            enable_kv_cache_events=self.events,
            watermark=source.choice([0.0, 0.0, 0.05]),
            enable_mamba_shared_prefix_checkpoint=source.random() < 0.5,
            **more,
        )

    def __str__(self) -> str:
        sizes = [f"{kind} {spec.block_size}" for kind, spec in zip(self.kinds, self.specs, strict=True)]
        return (
            f"{', '.join(sizes)}; hashes of {self.hash_block}, hits of {self.scheduler_block}, retention "
            f"{self.retention}, eagle {self.use_eagle}, dcp {self.dcp}, metrics {self.metrics}, events "
            f"{self.events}"
        )


class Requests:
    """Random requests, which share prefixes, on one manager. They wait, run or are preempted."""

    def __init__(self, configuration: Configuration, manager: Any) -> None:
        self.vllm, self.manager = configuration.vllm, manager
        self.configuration, self.source = configuration, configuration.source
        self.hasher = self.vllm.get_request_block_hasher(configuration.hash_block, self.vllm.sha256)
        self.waiting: list[Any] = []
        self.running: list[Any] = []
        self.made = 0
        self.hits = 0

    def arrive(self) -> None:
        source = self.source
        prefix = [TOKEN + source.randrange(2)] * source.randrange(0, 120)
        self.made += 1
        request = self.vllm.Request(
            request_id=f"request-{self.made}",
            prompt_token_ids=prefix + [TOKEN + source.randrange(3) for _ in range(source.randrange(1, 30))],
            sampling_params=self.vllm.SamplingParams(max_tokens=64),
            pooling_params=None,
            block_hasher=self.hasher,
        )
        self.waiting.append(request)

    def chunk(self, request: Any, computed: int) -> int:
        """Returns how many tokens of a prompt to compute next. Chunks end at block boundaries, because
        states are kept only there.
        """
        left = request.num_tokens - computed
        block = self.configuration.scheduler_block
        size = block * self.source.randrange(1, 6) - computed % block
        return int(min(left, size))

    def admit(self, request: Any) -> None:
        manager, source = self.manager, self.source
        if source.random() < 0.1:
            manager.get_computed_blocks_for_connector(request)
        blocks, tokens, boundary = manager.get_computed_blocks(request)
        self.hits += tokens > 0
        if boundary:
            request.shared_prefix_boundary = boundary
        new = self.chunk(request, tokens)
        taken = manager.allocate_slots(
            request,
            new,
            tokens,
            blocks,
            num_lookahead_tokens=self.configuration.lookahead,
            full_sequence_must_fit=source.random() < 0.5,
            has_scheduled_reqs=source.random() < 0.5,
            reserved_blocks=source.choice([0, 0, 3]),
            delay_cache_blocks=source.random() < 0.1,
        )
        if taken is not None:
            self.waiting.remove(request)
            self.running.append(request)
            request.status = self.vllm.RequestStatus.RUNNING
            request.num_computed_tokens = tokens + new
            request.num_in_flight_tokens = new

    def go_on(self, request: Any) -> None:
        """Computes the next chunk of a prompt, or a token with some draft tokens. Accepts a random
        number of the drafts.
        """
        source, configuration = self.source, self.configuration
        left = request.num_tokens - request.num_computed_tokens
        drafts = source.randrange(3) if configuration.use_eagle and left <= 1 else 0
        new = self.chunk(request, request.num_computed_tokens) if left > 1 else 1 + drafts
        later = source.random() < 0.3
        if request.num_computed_tokens + new > MODEL_LEN - 8:
            self.end(request)
            return
        taken = self.manager.allocate_slots(
            request, new, num_lookahead_tokens=configuration.lookahead, delay_cache_blocks=later
        )
        if taken is None:
            self.preempt(request)
            return
        request.num_computed_tokens += new
        request.num_in_flight_tokens += new
        if request.num_computed_tokens >= request.num_tokens:
            accepted = source.randrange(drafts + 1)
            request.num_computed_tokens -= drafts - accepted
            request.append_output_token_ids([TOKEN + source.randrange(2) for _ in range(1 + accepted)])
        if source.random() < 0.7:
            request.num_in_flight_tokens = 0
        if later:
            self.manager.cache_blocks(request, request.num_computed_tokens)

    def preempt(self, request: Any) -> None:
        self.end(request)
        request.num_computed_tokens = request.num_in_flight_tokens = 0
        request.status = self.vllm.RequestStatus.PREEMPTED
        self.waiting.append(request)

    def end(self, request: Any) -> None:
        self.running.remove(request)
        self.manager.free(request)

    def step(self) -> None:
        """Runs one random operation, or ends a step of the engine."""
        chance = self.source.random()
        if chance < 0.3 or (not self.waiting and not self.running):
            self.arrive()
        elif chance < 0.5 and self.waiting:
            self.admit(self.source.choice(self.waiting))
        elif chance < 0.6 and self.running:
            self.end(self.source.choice(self.running))
        elif chance < 0.62 and self.running:
            self.manager.evict_blocks({self.source.randrange(1, self.configuration.blocks) for _ in range(3)})
        elif chance < 0.7 and self.running:
            self.manager.estimate_cached_tokens(self.source.choice(self.running))
        elif self.running:
            self.go_on(self.source.choice(self.running))
        if self.source.random() < 0.4:
            self.manager.new_step_starts()
            self.manager.take_boundary_state_offloads()
            self.manager.take_events()
        _copies, retained = self.manager.take_kv_cache_block_copies()
        if retained:
            self.manager.block_pool.free_blocks(retained)
        while len(self.waiting) > 8:
            self.waiting.pop(0)
