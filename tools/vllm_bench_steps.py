#!/usr/bin/env python3
"""Measures whole steps of vLLM's own scheduler, stock and with kvpool inside, to find how much time
kvpool saves in a whole step.

    .venv-vllm/bin/python tools/vllm_bench_steps.py
    .venv-vllm/bin/python tools/vllm_bench_steps.py --levels stock manager --steps 400

A step is ``schedule`` and ``update_from_output`` of vLLM's asynchronous scheduler. Each request gets a
token per step, one step after it was scheduled. No model runs, so a step contains no model time. Times
are those for which the thread ran. tools/vllm_bench.py measures the calls of the KV-cache manager
alone.

The KV-cache groups are those of real models: one group of full attention; two groups as in gpt-oss,
with a sliding window; six as in Gemma 3, with five sliding windows; four as in Qwen3-Next, with three
state spaces.

Needs the environment of tools/vllm_env.py. The levels take turns within one process, one round after
the other. Every level has to give each request the same blocks. Exit code 0: all blocks are equal. 1:
they differ, or a run failed. 2: bad usage.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import os
import statistics
import sys
import time
import zlib
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # the folder tools/ contains a folder named vllm

from tools.vllm.bench_loads import BLOCK_SIZE, output_token  # noqa: E402
from tools.vllm.bench_models import MODELS, make_groups  # noqa: E402
from tools.vllm.bench_run import check_level, import_vllm  # noqa: E402
from tools.vllm.bench_stats import STOCK, BenchError, rotations  # noqa: E402
from tools.vllm.common import ConformanceError, arguments, read_settings  # noqa: E402

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

LEVELS: Final = (STOCK, "pool", "manager")
PROMPT: Final = 512
CONFIG: Final = "facebook/opt-125m"  # any of the models in the environment works
WARM_STEPS: Final = 40
REQUESTS: Final = 256  # requests that run at once


@dataclasses.dataclass
class Steps:
    """The results of one run: the seconds of each step's two parts, and a checksum of all block ids."""

    schedule: list[float]
    update: list[float]
    blocks: int

    def medians(self) -> tuple[float, float, float]:
        """Returns three medians: of whole steps, of ``schedule``, and of ``update_from_output``."""
        whole = [one + other for one, other in zip(self.schedule, self.update, strict=True)]
        return statistics.median(whole), statistics.median(self.schedule), statistics.median(self.update)


def load() -> SimpleNamespace:
    found = SimpleNamespace(torch=importlib.import_module("torch"))
    for module, names in {
        "vllm": ("SamplingParams",),
        "vllm.config": ("CacheConfig", "ModelConfig", "SchedulerConfig", "VllmConfig"),
        "vllm.utils.hashing": ("sha256",),
        "vllm.v1.core.sched.async_scheduler": ("AsyncScheduler",),
        "vllm.v1.kv_cache_interface": ("KVCacheConfig",),
        "vllm.v1.outputs": ("ModelRunnerOutput",),
        "vllm.v1.request": ("Request",),
        "vllm.v1.structured_output": ("StructuredOutputManager",),
    }.items():
        for name in names:
            setattr(found, name, getattr(importlib.import_module(module), name))
    return found


def make_scheduler(vllm: SimpleNamespace, model: str, requests: int, length: int) -> Any:
    """Makes vLLM's asynchronous scheduler, with blocks for all requests at their full length."""
    groups = make_groups(model, BLOCK_SIZE)
    num_blocks = requests * len(groups) * (length // BLOCK_SIZE + 2) + 1
    cache = vllm.CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
    if None in MODELS[model]:
        cache.mamba_cache_mode = "align"
    config = vllm.VllmConfig(
        model_config=vllm.ModelConfig(model=CONFIG, dtype="float16", seed=0, skip_tokenizer_init=True),
        scheduler_config=vllm.SchedulerConfig(
            max_num_seqs=requests,
            max_num_batched_tokens=8192,
            max_model_len=length,
            enable_chunked_prefill=True,
            async_scheduling=True,
            is_encoder_decoder=False,
        ),
        cache_config=cache,
    )
    config.model_config.max_model_len = length
    config.cache_config.num_gpu_blocks = num_blocks
    return vllm.AsyncScheduler(
        vllm_config=config,
        kv_cache_config=vllm.KVCacheConfig(
            num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups
        ),
        structured_output_manager=vllm.StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        log_stats=True,
    )


def output_of(vllm: SimpleNamespace, scheduled: Any, scheduler: Any) -> Any:
    """Returns the output that a model would have for a step: a token for every request whose prompt is
    computed.
    """
    names = list(scheduled.num_scheduled_tokens)
    tokens = []
    for name in names:
        request = scheduler.requests[name]
        inside = request.is_prefill_chunk
        tokens.append([] if inside else [output_token(int(name), request.num_output_tokens)])
    return vllm.ModelRunnerOutput(
        req_ids=names, req_id_to_index={name: at for at, name in enumerate(names)}, sampled_token_ids=tokens
    )


def run(level: str, model: str, vllm: SimpleNamespace, options: argparse.Namespace) -> Steps:
    """Runs all requests once with the classes of a level. All requests arrive, and then decode for this
    number of steps.
    """
    core = importlib.import_module("vllm.v1.engine.core")
    core.init_none_hash(vllm.sha256)
    hasher = core.get_request_block_hasher(BLOCK_SIZE, vllm.sha256)
    outputs = WARM_STEPS + options.steps + 64
    scheduler = make_scheduler(vllm, model, REQUESTS, (PROMPT + outputs + 64) // 16 * 16)
    check_level(level, scheduler.kv_cache_manager, scheduler.kv_cache_manager.block_pool)
    for number in range(REQUESTS):
        prompt = list(range(number * PROMPT, (number + 1) * PROMPT))
        sampling = vllm.SamplingParams(max_tokens=outputs, ignore_eos=True)
        scheduler.add_request(vllm.Request(str(number), prompt, sampling, None, block_hasher=hasher))
    found = Steps([], [], 0)
    clock = time.thread_time  # excludes other load of the machine
    pending = None
    warm = WARM_STEPS
    gc.collect()
    gc.freeze()  # like the engine after its start
    try:
        while len(found.schedule) < options.steps:
            begun = clock()
            scheduled = scheduler.schedule()
            spent = clock() - begun
            found.blocks = checksum(scheduled, found.blocks)
            took = 0.0
            if pending is not None:
                output = output_of(vllm, pending, scheduler)
                begun = clock()
                scheduler.update_from_output(pending, output)
                took = clock() - begun
            pending = scheduled
            decodes = scheduled.total_num_scheduled_tokens == REQUESTS == len(scheduled.num_scheduled_tokens)
            warm -= decodes
            if decodes and warm < 0:
                found.schedule.append(spent)
                found.update.append(took)
    finally:
        gc.unfreeze()
        scheduler.shutdown()
    return found


def checksum(scheduled: Any, value: int) -> int:
    """Adds the block ids of a step's new and running requests to a checksum."""
    given = [one.block_ids for one in scheduled.scheduled_new_reqs]
    given += [one for one in scheduled.scheduled_cached_reqs.new_block_ids if one is not None]
    for groups in given:
        for group in groups:
            value = zlib.crc32(array("q", group).tobytes(), value)
    return value


def run_level(level: str, model: str, vllm: SimpleNamespace, options: argparse.Namespace) -> Steps:
    gc.collect()
    if level == STOCK:
        return run(level, model, vllm, options)
    with importlib.import_module("kvpool.integrations.vllm.install").installed(level):
        return run(level, model, vllm, options)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=list(LEVELS), help="default: all")
    parser.add_argument(
        "--steps", type=int, default=200, help="number of timed steps of a run (default: 200)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each level (default: 3)")
    options = parser.parse_args(argv)
    if min(options.steps, options.rounds) < 1:
        parser.error("--steps and --rounds are at least 1")
    options.levels = [STOCK, *(level for level in dict.fromkeys(options.levels) if level != STOCK)]
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    try:
        os.environ.update(read_settings(options.venv.absolute())["environment"])
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.pop("KVPOOL_VLLM", None)  # the levels are installed and removed here
        version = import_vllm(options.levels)
        vllm = load()
        runs: dict[tuple[str, str], list[Steps]] = {}
        for order in rotations(options.levels, options.rounds):
            for model in MODELS:
                for level in order:
                    runs.setdefault((model, level), []).append(run_level(level, model, vllm, options))
    except (BenchError, ConformanceError) as error:
        print(f"vllm_bench_steps: {error}", file=sys.stderr)
        return 1
    print(f"vLLM {version}, {REQUESTS} running, {options.steps} steps, {options.rounds} rounds; ms a step:")
    print(f"{'groups of':12}" + "".join(f"{level:>32}" for level in options.levels))
    differ = []
    for model in MODELS:
        row, first = f"{model:12}", 0.0
        for level in options.levels:
            # Use the fastest round of each level, because other load of the machine can only make a
            # round slower.
            best = min(one.medians() for one in runs[model, level])
            first = first or best[0]
            times = f"{best[0] * 1e3:.2f} ({best[1] * 1e3:.2f} + {best[2] * 1e3:.2f})"
            row += f"{times + f' {first / best[0]:5.2f}x':>32}"
            if {one.blocks for one in runs[model, level]} != {runs[model, STOCK][0].blocks}:
                differ.append(f"{model}, {level}: other block ids than stock's")
        print(row)
    for line in differ:
        print(line, file=sys.stderr)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
