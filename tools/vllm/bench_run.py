"""Runs a load at a level of kvpool's plug-in. The level ``stock`` is unchanged vLLM.

Makes vLLM's objects as its engine does, and installs the classes of the level.
"""

from __future__ import annotations

import gc
import importlib
import time
from typing import TYPE_CHECKING, Any

from tools.vllm.bench_driver import Driver
from tools.vllm.bench_loads import BLOCK_SIZE, Load
from tools.vllm.bench_models import make_groups
from tools.vllm.bench_stats import STOCK, BenchError, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def make_config(num_blocks: int, model: str) -> Any:
    interface = importlib.import_module("vllm.v1.kv_cache_interface")
    groups = make_groups(model, BLOCK_SIZE)
    # Windows are retained as in an engine with default settings. States are retained at the end of each
    # chunk. Otherwise vLLM would retain them only at a few positions, at which the chunks of these
    # loads do not end.
    states = any(isinstance(group.kv_cache_spec, interface.MambaSpec) for group in groups)
    return interface.KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        prefix_cache_retention_interval=None if states else 0,
    )


def check_level(level: str, manager: Any, pool: Any) -> None:
    """Raises an error unless the objects have the classes of the level. Without this check, a level
    that failed to install would be measured as if it were kvpool, although it is stock.
    """
    ours = {
        name: type(one).__module__.startswith("kvpool")
        for name, one in (("manager", manager), ("pool", pool))
    }
    if level == STOCK:
        if any(ours.values()):
            raise BenchError(
                "the level stock is not stock vLLM: kvpool has replaced "
                f"{', '.join(k for k, v in ours.items() if v)}"
            )
    elif not ours.get(level, any(ours.values())):
        raise BenchError(f"{level}: vLLM's own objects are used, kvpool has left them as they are")


def make_publisher() -> Any:
    """Makes the publisher of KV events that vLLM's scheduler would create: vLLM's own, or kvpool's.
    kvpool's publisher gets the events from kvpool's pool.
    """
    events = importlib.import_module("vllm.distributed.kv_events")
    config = importlib.import_module("vllm.config.kv_events").KVEventsConfig(
        enable_kv_cache_events=True, publisher="zmq", endpoint="tcp://127.0.0.1:*"
    )
    return events.EventPublisherFactory.create(config, 0)


def publishing(publisher: Any) -> Callable[[list[Any]], None]:
    """Returns a function that publishes the events of a step as vLLM's scheduler does."""
    batch = importlib.import_module("vllm.distributed.kv_events").KVEventBatch
    return lambda events: publisher.publish(batch(ts=time.time(), events=events))


def run_inside(
    level: str, load: Load, events: bool, tick: Callable[[int], None], clock: Callable[[], int]
) -> Run:
    """Runs a load once. The classes of the level are already installed."""
    scheduler = importlib.import_module("vllm.v1.core.sched.scheduler")
    core = importlib.import_module("vllm.v1.engine.core")
    hash_function = importlib.import_module("vllm.utils.hashing").sha256
    core.init_none_hash(hash_function)
    hasher = core.get_request_block_hasher(BLOCK_SIZE, hash_function)
    publisher = make_publisher() if events else None
    manager = scheduler.KVCacheManager(
        kv_cache_config=make_config(load.num_blocks, load.model),
        max_model_len=load.max_model_len,
        max_in_flight_tokens=2 * load.token_budget,
        enable_caching=True,
        use_eagle=False,
        num_prefill_lookahead=0,
        log_stats=True,
        enable_kv_cache_events=events,
        dcp_world_size=1,
        pcp_world_size=1,
        scheduler_block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        metrics_collector=None,
        watermark=0.0,
        enable_mamba_shared_prefix_checkpoint=False,
    )
    check_level(level, manager, manager.block_pool)
    driver = Driver(load, manager, hasher, events, publisher and publishing(publisher), clock)
    # Exclude the objects that exist now from later garbage collections, as vLLM's engine does after its
    # start.
    gc.collect()
    gc.freeze()
    try:
        return driver.run(tick)
    finally:
        gc.unfreeze()
        if publisher is not None:
            publisher.shutdown()


def run_level(
    level: str,
    load: Load,
    events: bool,
    tick: Callable[[int], None],
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Run:
    """Runs a load once at a level, with an empty manager at the start. ``clock`` returns nanoseconds."""
    gc.collect()
    if level == STOCK:
        return run_inside(level, load, events, tick, clock)
    install = importlib.import_module("kvpool.integrations.vllm.install")
    with install.installed(level):
        return run_inside(level, load, events, tick, clock)


def import_vllm(levels: Sequence[str]) -> str:
    """Imports the modules of vLLM that the runs need. Returns vLLM's version."""
    try:
        vllm = importlib.import_module("vllm")
        for name in ("vllm.v1.core.sched.scheduler", "vllm.v1.engine.core", "vllm.v1.request"):
            importlib.import_module(name)
    except ImportError as error:
        raise BenchError(
            f"vLLM cannot be imported ({error}): run tools/vllm_env.py (make vllm-env), then this with the "
            "Python of "
            "that environment, .venv-vllm/bin/python"
        ) from error
    if any(level != STOCK for level in levels):
        try:
            importlib.import_module("kvpool.integrations.vllm.install")
        except ImportError as error:
            raise BenchError(f"this kvpool has no vLLM plug-in: {error}") from error
    version: str = vllm.__version__
    return version
