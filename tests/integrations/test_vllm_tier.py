"""Tests kvpool's store as a tier of vLLM's offloading, over stand-ins for vLLM. Stored chunks are
found, and no others. tools/vllm_conformance.py tests the tier inside vLLM.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tempfile
import time
import types
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.errors import ClosedError, InvalidArgumentError, StoreError
from kvpool.integrations.vllm.offload.namespace import namespace_of
from kvpool.integrations.weights import REMEMBERED
from kvpool.store import StoreFolder
from tests.integrations.config_stand_ins import CacheConfig, LoRAConfig, ModelConfig, VllmConfig
from tests.integrations.offload_stand_ins import (
    Context,
    LookupResult,
    LoRARequest,
    Request,
    TransferJob,
    Vllm,
    loaded,
)
from tools.vllm import offload_plugin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

CHUNKS, CHUNK = 8, 4096
#: The time limit of every wait. It is far longer than any machine needs, so no test measures time with
#: it.
AGES = 120.0
numpy = pytest.importorskip("numpy")


@pytest.fixture(scope="module")
def vllm() -> Iterator[Vllm]:
    with loaded() as modules:
        yield modules


@pytest.fixture(autouse=True)
def version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(REMEMBERED, str(tmp_path / "content.json"))
    known = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.33" if name == "vllm" else known(name))


def spec_of(**changed: Any) -> Any:
    parallel = {"world_size": 1, "tp_size": 1, "pp_size": 1, "pcp_size": 1, "dcp_size": 1}
    fields: dict[str, Any] = {
        "groups": (types.SimpleNamespace(group_id=0, tokens_per_block=16, layer_names=("a", "b")),),
        "worker_kv_bytes_per_block": CHUNK,
        "model": types.SimpleNamespace(name="llama", dtype="bfloat16"),
        "cache": types.SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
        "parallel": types.SimpleNamespace(**parallel | changed.pop("parallel", {})),
        "replicated_layout": False,
        "canonical_layout": False,
        "kv_cache_layout": None,
        "engine_id": "engine",
    }
    return types.SimpleNamespace(
        config=types.SimpleNamespace(**fields | changed),
        kv_events_config=types.SimpleNamespace(enable_kv_cache_events=True),
    )


def key(number: int, group: int = 0) -> bytes:
    return bytes([number]) * 32 + group.to_bytes(4, "big")


class Engine:
    """A tier, and the CPU memory whose chunks it stores."""

    def __init__(self, vllm: Vllm, folder: Path, **settings: Any) -> None:
        self.memory = numpy.zeros((CHUNKS, CHUNK), numpy.int8)
        settings = {
            "admission": "always",
            "weights": "1",
            "free_floor_bytes": 0,
            "capacity_bytes": 1 << 20,
            **settings,
        }
        settings.setdefault("deadline", AGES)
        settings.setdefault("root_dir", None if "url" in settings else str(folder))
        spec = settings.pop("spec", None) or spec_of()
        # The tier finds the configuration in a local variable of its caller with this name, as in the
        # constructor of vLLM's connector.
        vllm_config = settings.pop("config", None) or VllmConfig()
        self.tier = vllm.tier(spec, memoryview(self.memory), "kvpool", None, **settings)
        self.context = self.request()
        assert vllm_config is not None

    def request(self, adapter: LoRARequest | None = None) -> Any:
        """Returns the context of a new request, as vLLM passes it to the tier."""
        positions = {key(number): 16 * number for number in range(CHUNKS)}
        module = sys.modules["vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler"]
        context = vars(module)["_create_req_context"](Request(adapter, positions))
        self.tier.on_new_request(context)
        return context

    def job(self, keys: Sequence[bytes], chunks: Sequence[int], *, load: bool, context: Any = None) -> Any:
        job = TransferJob(7, keys, chunks, load, context or self.context)
        (self.tier.submit_load if load else self.tier.submit_store)(job)
        end = time.monotonic() + AGES
        while time.monotonic() < end:
            results = list(self.tier.get_finished_jobs())
            if results:
                (result,) = results
                assert result.job_id == 7
                return result
            time.sleep(0.001)
        raise AssertionError("the job never ended")

    def found(self, *keys: bytes, context: Any = None) -> list[bool]:
        return [self.tier.lookup(one, context or self.context) is LookupResult.HIT for one in keys]


def test_what_is_stored_is_loaded_by_another_engine(vllm: Vllm, tmp_path: Path) -> None:
    engine = Engine(vllm, tmp_path, enable_kv_events=True, locality="LOCAL")
    engine.memory[0], engine.memory[1] = 5, 6
    assert engine.found(key(1), key(1, 1)) == [False, False]
    stored = engine.job([key(1), key(1, 1)], [0, 1], load=False)
    assert (stored.success, stored.successful_keys, stored.transfer_bytes) == (True, None, 2 * CHUNK)
    assert engine.found(key(1), key(1, 1), key(1, 2)) == [True, True, False]
    (event,) = engine.tier.take_events()
    assert (event.keys, event.removed, event.medium.value, event.locality.value) == (
        [key(1), key(1, 1)],
        False,
        "STORAGE",
        "LOCAL",
    )
    # A second replica that runs at the same time has a separate folder. After both have ended, the next
    # engine gets the folder of the first.
    beside = Engine(vllm, tmp_path)
    assert beside.found(key(1), key(1, 1)) == [False, False]
    engine.tier.shutdown()
    again = Engine(vllm, tmp_path)
    assert again.found(key(1), key(1, 1)) == [True, True]
    assert again.job([key(1, 1), key(1)], [2, 3], load=True).success
    assert again.memory[:, 0].tolist() == [0, 0, 6, 5, 0, 0, 0, 0]
    again.tier.shutdown()
    beside.tier.shutdown()
    assert (tmp_path / "replica-1" / "lock").exists()


def test_a_shared_back_end_is_asked_once_a_step(vllm: Vllm, tmp_path: Path) -> None:
    """Chunks that other engines have written are found. While the back end has not answered, the
    requests wait but the scheduler does not.
    """

    def engine() -> Engine:
        return Engine(vllm, tmp_path, url=f"folder://{tmp_path}")

    one, other = engine(), engine()
    one.memory[0] = 5
    one.job([key(1)], [0], load=False)
    tier, keys = other.tier, [key(number) for number in range(4)]
    assert {tier.lookup(one, other.context) for one in keys} == {LookupResult.RETRY}
    assert tier.has_pending_work()
    tier.on_schedule_end(None)
    assert {tier.lookup(one, other.context) for one in keys} <= {
        LookupResult.RETRY,
        LookupResult.HIT,
        LookupResult.MISS,
    }
    tier.on_schedule_end(None)  # asks nothing a second time
    until(lambda: not list(tier.get_finished_jobs()) and not tier.has_pending_work())
    assert other.found(*keys) == [False, True, False, False]
    assert tier.lookup(key(0), other.context) is LookupResult.MISS
    assert other.job([key(1)], [3], load=True).success
    assert other.memory[3].tolist() == [5] * CHUNK
    for closed in (one, other):
        closed.tier.shutdown()


def test_a_server_that_is_down_is_a_miss(vllm: Vllm, tmp_path: Path) -> None:
    """If a server is down, lookups miss, and requests are computed. Later lookups ask the server again."""
    engine = Engine(vllm, tmp_path, url=f"folder://{tmp_path}")
    for broken in tmp_path.iterdir():
        if broken.is_dir():
            broken.rmdir()
    tier = engine.tier
    store = tier._store
    tier._store = types.SimpleNamespace(
        contains=store.contains,
        probe=lambda keys, groups: 99,
        poll=lambda: [(99, ["timed_out"])],
        close=store.close,
    )
    assert tier.lookup(key(1), engine.context) is LookupResult.RETRY
    tier.on_schedule_end(None)
    assert list(tier.get_finished_jobs()) == []
    assert not tier.has_pending_work()
    assert tier.lookup(key(1), engine.context) is LookupResult.MISS
    tier._unknown_until[key(1)] = 0.0
    assert tier.lookup(key(1), engine.context) is LookupResult.RETRY
    tier.shutdown()


@pytest.mark.parametrize("settings", [{"root_dir": None}, {"root_dir": "/a", "url": "redis://host"}])
def test_a_tier_has_one_place(vllm: Vllm, tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="root_dir and url: give one of them"):
        Engine(vllm, tmp_path, **settings)


def until(done: Any) -> None:
    end = time.monotonic() + AGES
    while not done():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_load_that_misses_keeps_the_loaded_blocks(vllm: Vllm, tmp_path: Path) -> None:
    engine = Engine(vllm, tmp_path)
    engine.memory[0] = 5
    engine.job([key(1)], [0], load=False)
    result = engine.job([key(2), key(1)], [3, 4], load=True)
    assert (result.success, result.successful_keys, result.transfer_bytes) == (False, (key(1),), CHUNK)
    nothing = engine.job([key(2)], [3], load=True)
    assert (nothing.success, nothing.successful_keys) == (False, None)
    assert engine.memory[:, 0].tolist() == [5, 0, 0, 0, 5, 0, 0, 0]
    engine.tier.shutdown()


def test_a_damaged_chunk_is_computed_and_not_served(vllm: Vllm, tmp_path: Path) -> None:
    engine = Engine(vllm, tmp_path, enable_kv_events=True)
    engine.memory[0] = 5
    engine.job([key(1)], [0], load=False)
    engine.tier.take_events()
    folder = StoreFolder(tmp_path)
    with next(tmp_path.glob("*.slab")).open("r+b") as slab:
        slab.seek(folder.objects(0, folder.places)[0][0] * folder.object_bytes + 4096 + 9)
        slab.write(b"\x06")
    result = engine.job([key(1)], [2], load=True)
    assert not result.success
    assert not engine.memory[2].any(), "bytes that are not the chunk's"
    assert engine.found(key(1)) == [False], "the request would come back for ever"
    (event,) = engine.tier.take_events()
    assert (event.keys, event.removed) == ([key(1)], True)
    assert engine.tier.get_stats().counters["vllm:kvpool_store_damaged"] == 1
    engine.tier.shutdown()


def test_evictions_are_published_and_touched_keys_stay(vllm: Vllm, tmp_path: Path) -> None:
    engine = Engine(vllm, tmp_path, capacity_bytes=2 * (CHUNK + 4096), enable_kv_events=True)
    for number in (1, 2):
        engine.job([key(number)], [number], load=False)
    engine.tier.touch([key(1)], engine.context)
    engine.job([key(3)], [3], load=False)
    assert engine.found(key(1), key(2), key(3)) == [True, False, True]
    events = list(engine.tier.take_events())
    assert [(one.keys, one.removed) for one in events] == [
        ([key(1)], False),
        ([key(2)], False),
        ([key(3)], False),
        ([key(2)], True),
    ]
    engine.tier.shutdown()


def test_what_is_offered_once_costs_no_write(vllm: Vllm, tmp_path: Path) -> None:
    engine = Engine(vllm, tmp_path, admission="second_touch")
    for stored in (False, True):
        result = engine.job([key(1)], [0], load=False)
        assert result.success
        assert result.transfer_bytes == (CHUNK if stored else 0)
        assert engine.found(key(1)) == [stored]
    counters = engine.tier.get_stats().counters
    assert (counters["vllm:kvpool_store_not_admitted"], counters["vllm:kvpool_store_writes"]) == (1, 1)
    assert engine.tier.get_stats().counters["vllm:kvpool_store_writes"] == 0, "since the last call"
    assert set(engine.tier.build_metric_definitions({})) == set(counters) | set(
        engine.tier.get_stats().gauges
    )
    engine.tier.shutdown()


@pytest.mark.parametrize(("on_reset", "kept"), [("renew", False), ("keep", True)])
def test_kv_of_other_weights_is_not_served(vllm: Vllm, tmp_path: Path, on_reset: str, kept: bool) -> None:
    """After an update of the weights, vLLM resets its caches. Then it asks persistent tiers for the
    same keys.
    """
    engine = Engine(vllm, tmp_path, on_reset=on_reset)
    engine.job([key(1)], [0], load=False)
    engine.tier.submit_store(TransferJob(8, [key(2)], [1], False, engine.context))
    engine.tier.drain_jobs()
    assert [(one.job_id, one.success) for one in engine.tier.get_finished_jobs()] == [(8, True)]
    assert engine.found(key(1), key(2)) == [kept, kept]
    engine.job([key(3)], [2], load=False, context=engine.request())
    assert engine.found(key(3)) == [True]
    engine.tier.shutdown()
    # The new engine starts with its original weights. So it must not find chunks that were computed
    # with the updated weights.
    again = Engine(vllm, tmp_path, on_reset=on_reset)
    assert again.found(key(1), key(2), key(3)) == [kept, kept, kept]
    again.tier.shutdown()


def test_a_request_that_began_before_a_reset_stores_nothing(vllm: Vllm, tmp_path: Path) -> None:
    engine = Engine(vllm, tmp_path)
    engine.tier.drain_jobs()
    result = engine.job([key(1)], [0], load=False)
    assert (result.success, result.transfer_bytes) == (True, 0)
    assert engine.found(key(1), context=engine.request()) == [False]
    engine.tier.shutdown()


def scheduler(engine: Engine, kind: Any = None) -> Any:
    """Returns vLLM's scheduler after the tier has installed its hook in it."""
    return (kind or vars(sys.modules["vllm.v1.core.sched.scheduler"])["Scheduler"])(engine.tier)


@pytest.mark.parametrize("arguments", [{}, {"reset_running_requests": True}, {"reset_connector": True}])
def test_any_reset_of_the_prefix_cache_renews(vllm: Vllm, tmp_path: Path, arguments: dict[str, bool]) -> None:
    engine = Engine(vllm, tmp_path)
    engine.job([key(1)], [0], load=False)
    assert scheduler(engine).reset_prefix_cache(**arguments) is True
    assert engine.found(key(1)) == [False]
    assert engine.tier.generation == 1, "CPU memory is reset with it, and once is enough"
    engine.tier.shutdown()


def test_a_reset_means_nothing_where_weights_never_change(vllm: Vllm, tmp_path: Path) -> None:
    engine = Engine(vllm, tmp_path, on_reset="keep")
    engine.job([key(1)], [0], load=False)
    one = scheduler(engine)
    assert one.reset_prefix_cache(False, False)
    vars(sys.modules["vllm.v1.engine.core"])["EngineCore"]().collective_rpc("reload_weights")
    assert engine.found(key(1)) == [True]
    engine.tier.shutdown()


def test_a_scheduler_of_its_own_renews(vllm: Vllm, tmp_path: Path) -> None:
    """Old chunks are removed even if the scheduler does not support connectors, or if its reset fails."""
    engine = Engine(vllm, tmp_path)

    class Mine:
        def __init__(self, tier: Any) -> None:
            self.resets = 0

        def reset_prefix_cache(self) -> bool:
            self.resets += 1
            if self.resets > 1:
                raise RuntimeError("blocks are in use")
            return True

    config = VllmConfig()
    config.scheduler_config.scheduler_cls = Mine
    engine.tier.shutdown()
    engine = Engine(vllm, tmp_path, config=config)
    one = scheduler(engine, Mine)
    one.reset_prefix_cache()
    with pytest.raises(RuntimeError, match="blocks are in use"):
        one.reset_prefix_cache()
    assert engine.tier.generation == 2
    engine.tier.shutdown()


@pytest.mark.parametrize(
    ("method", "renewed"),
    [
        ("reload_weights", True),
        ("update_weights", True),
        (print, True),
        ("new", True),
        ("get_model_inspection", False),
    ],
)
def test_what_workers_run_renews_unless_it_is_harmless(
    vllm: Vllm, tmp_path: Path, method: Any, renewed: bool
) -> None:
    engine = Engine(vllm, tmp_path)
    engine.job([key(1)], [0], load=False)
    core = vars(sys.modules["vllm.v1.engine.core"])["EngineCore"]()
    assert core.collective_rpc(method, 1.0, args=(1,)) == [method]
    assert core.called == [method]
    assert engine.found(key(1)) == [not renewed]
    engine.tier.shutdown()


def test_a_tier_that_has_ended_is_not_renewed(vllm: Vllm, tmp_path: Path) -> None:
    """Two engines may follow each other in one process. A reset affects neither the tier of an ended
    engine nor a tier whose store could not be opened.
    """
    ended, running = Engine(vllm, tmp_path / "ended"), Engine(vllm, tmp_path / "running")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError) as failed:
        Engine(vllm, tmp_path / "file")
    ended.tier.shutdown()
    assert scheduler(running).reset_prefix_cache()
    assert (ended.tier.generation, running.tier.generation) == (0, 1)
    assert failed.value.__traceback__ is not None, "holds the tier that could not start"
    running.tier.shutdown()


@pytest.mark.parametrize("on_reset", ["renew", "keep"])
def test_a_vllm_that_does_not_show_its_resets_is_refused(
    vllm: Vllm, tmp_path: Path, on_reset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sys.modules["vllm.v1.engine.core"], "EngineCore")
    if on_reset == "renew":
        with pytest.raises(InvalidArgumentError, match='"on_reset": "keep"'):
            Engine(vllm, tmp_path, on_reset=on_reset)
    else:
        Engine(vllm, tmp_path, on_reset=on_reset).tier.shutdown()


def adapter_in(folder: Path, content: str = "1") -> LoRARequest:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_text(content)
    return LoRARequest("tune", 1, str(folder))


def with_adapters(vllm: Vllm, folder: Path, **settings: Any) -> Engine:
    return Engine(vllm, folder, config=VllmConfig(lora_config=LoRAConfig()), **settings)


def test_chunks_of_an_adapter_are_named_by_its_content(vllm: Vllm, tmp_path: Path) -> None:
    """vLLM's keys contain the name and the path of an adapter. So another adapter at the same path has
    the same keys.
    """
    adapter = adapter_in(tmp_path / "adapter")
    for content, found in (("1", False), ("1", True), ("2", False), ("2", True), ("1", True)):
        if content != (tmp_path / "adapter" / "adapter_model.safetensors").read_text():
            adapter_in(tmp_path / "adapter", content)
        engine = with_adapters(vllm, tmp_path / "kv")
        context = engine.request(adapter)
        assert engine.found(key(1), context=context) == [found]
        assert engine.found(key(1), context=engine.request()) == [False], "the base model's"
        engine.memory[0] = int(content)
        engine.job([key(1)], [0], load=False, context=context)
        assert engine.job([key(1)], [1], load=True, context=context).success
        assert engine.memory[1, 0] == int(content)
        engine.tier.touch([key(1)], context)
        engine.tier.shutdown()


def test_an_adapter_that_changes_while_the_engine_runs_is_not_stored(vllm: Vllm, tmp_path: Path) -> None:
    """If an adapter changes, it is unknown whether the workers use the old or the new adapter."""
    adapter = adapter_in(tmp_path / "adapter")
    engine = with_adapters(vllm, tmp_path / "kv")
    began = engine.request(adapter)
    engine.job([key(1)], [0], load=False, context=began)
    adapter_in(tmp_path / "adapter", "2")
    assert engine.job([key(2)], [0], load=False, context=began).transfer_bytes == 0
    for request in (
        adapter,
        LoRARequest("tune", 1, adapter.lora_path, True),
        LoRARequest("tune", 2, adapter.lora_path),
    ):
        later = engine.request(request)
        assert engine.job([key(3)], [0], load=False, context=later).transfer_bytes == 0
        assert engine.found(key(1), key(2), key(3), context=later) == [False, False, False]
        assert not engine.job([key(1)], [0], load=True, context=later).success
        engine.tier.touch([key(1)], later)
    assert engine.job([key(4)], [0], load=False, context=engine.request()).transfer_bytes == CHUNK
    engine.tier.shutdown()


def test_an_adapter_without_files_is_not_stored(vllm: Vllm, tmp_path: Path) -> None:
    engine = with_adapters(vllm, tmp_path / "kv")
    for context in (engine.request(LoRARequest("tune", 1, "/nowhere/adapter")), Context({key(1): 0})):
        assert engine.job([key(1)], [0], load=False, context=context).transfer_bytes == 0
        assert engine.found(key(1), context=context) == [False]
    engine.tier.shutdown()


def test_an_adapter_is_read_when_the_engine_loads_it(vllm: Vllm, tmp_path: Path) -> None:
    adapter = adapter_in(tmp_path / "adapter")
    engine = with_adapters(vllm, tmp_path / "kv")
    core = vars(sys.modules["vllm.v1.engine.core"])["EngineCore"]()
    assert core.add_lora(adapter) is True
    assert core.called == [adapter]
    adapter_in(tmp_path / "adapter", "2")  # the workers have the earlier one
    assert engine.job([key(1)], [0], load=False, context=engine.request(adapter)).transfer_bytes == 0
    engine.tier.shutdown()


def test_events_have_the_keys_of_vllm(vllm: Vllm, tmp_path: Path) -> None:
    adapter = adapter_in(tmp_path / "adapter")
    engine = with_adapters(vllm, tmp_path / "kv", capacity_bytes=CHUNK + 4096, enable_kv_events=True)
    for number in (1, 2):
        engine.job([key(number)], [number], load=False, context=engine.request(adapter))
    events = list(engine.tier.take_events())
    assert [(one.keys, one.removed) for one in events] == [
        ([key(1)], False),
        ([key(2)], False),
        ([key(1)], True),
    ]
    engine.found(*(key(number) for number in range(3, 99)), context=engine.request(adapter))
    assert len(engine.tier._keys) == 1, "lookups take no memory"
    engine.tier.renew()
    (gone,) = engine.tier.take_events()
    assert (gone.keys, gone.removed) == ([key(2)], True)
    engine.tier.shutdown()


def test_a_renewal_that_is_not_recorded_forgets_all_the_same(
    vllm: Vllm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(vllm, tmp_path)
    engine.job([key(1)], [0], load=False)
    (record,) = tmp_path.glob("*.generation")
    record.unlink()
    record.mkdir()  # nothing can be renamed to this path
    engine.tier.drain_jobs()
    assert "did not record the renewal" in caplog.text
    assert engine.found(key(1)) == [False]
    assert engine.job([key(2)], [0], load=False, context=engine.request()).transfer_bytes == CHUNK
    assert engine.found(key(1), key(2)) == [False, True]
    engine.tier.shutdown()
    record.rmdir()
    again = Engine(vllm, tmp_path)
    assert again.found(key(2)) == [False], "it may be of other weights"
    again.tier.shutdown()


def test_everything_that_bytes_depend_on_is_a_cold_start(vllm: Vllm, tmp_path: Path) -> None:
    group = types.SimpleNamespace
    specs = [
        spec_of(),
        spec_of(model=group(name="llama", dtype="fp8")),
        spec_of(model=group(name="qwen", dtype="bfloat16")),
        spec_of(parallel={"tp_size": 2, "world_size": 2}),
        spec_of(kv_cache_layout="HND"),
        spec_of(groups=(group(group_id=0, tokens_per_block=16, layer_names=("a",)),)),
        spec_of(groups=(group(group_id=1, tokens_per_block=16, layer_names=("a", "b")),)),
        spec_of(cache=group(tokens_per_hash=16, blocks_per_chunk=2)),
        spec_of(replicated_layout=True),
    ]
    config = VllmConfig()
    digests = [namespace_of(spec, config, CHUNK, weights="1", scales="").digest for spec in specs]
    digests += [
        namespace_of(spec_of(), config, CHUNK, weights="2", scales="").digest,
        namespace_of(spec_of(), config, CHUNK, weights="1", scales="v2").digest,
        namespace_of(spec_of(), config, 2 * CHUNK, weights="1", scales="").digest,
        namespace_of(
            spec_of(), VllmConfig(cache_config=CacheConfig(32)), CHUNK, weights="1", scales=""
        ).digest,
    ]
    assert len(set(digests)) == len(digests)
    for spec in specs[:4]:
        engine = Engine(vllm, tmp_path, spec=spec)
        assert engine.found(key(1)) == [False]
        engine.job([key(1)], [0], load=False)
        engine.tier.shutdown()


def test_a_setting_without_a_form_is_reported_and_starts_cold(
    vllm: Vllm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        engine = Engine(vllm, tmp_path, config=VllmConfig(additional_config={"call": print}))
        assert "VllmConfig.additional_config.call" in caplog.text
        assert engine.found(key(1)) == [False]
        engine.job([key(1)], [0], load=False)
        engine.tier.shutdown()


def test_weights_in_a_folder_differ_by_content(vllm: Vllm, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    file = folder / "model.safetensors"
    file.write_bytes(b"weights")
    config = VllmConfig(model_config=ModelConfig(model=str(folder)))
    before = file.stat()
    for content, found in ((b"weights", False), (b"weights", True), (b"WEIGHTS", False)):
        file.write_bytes(content)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        engine = Engine(vllm, tmp_path / "kv", weights=None, config=config)
        assert engine.found(key(1)) == [found]
        engine.job([key(1)], [0], load=False)
        engine.tier.shutdown()


def test_weights_that_cannot_be_found_out_are_asked_for(vllm: Vllm, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="weights is not given"):
        Engine(vllm, tmp_path, weights=None)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("weights", ""),
        ("weights", " "),
        ("root_dir", ""),
        ("url", ""),
        ("deadline", 0),
        ("deadline", 0.0),
        ("deadline", -1.0),
        ("deadline", float("nan")),
    ],
)
def test_empty_settings_are_refused(vllm: Vllm, tmp_path: Path, setting: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{setting} is"):
        Engine(vllm, tmp_path, **{setting: value})


@pytest.mark.parametrize("setting", ["root_dir", "url"])
def test_the_folder_of_the_user_is_expanded(
    vllm: Vllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    engine = Engine(vllm, tmp_path, **{setting: "~/kv"})
    engine.job([key(1)], [0], load=False)
    engine.tier.shutdown()
    assert list((tmp_path / "kv").glob("*.slab"))
    assert not (tmp_path / "~").exists()


def test_hits_of_a_disk_count_as_such_and_hits_of_a_shared_back_end_do_not(
    vllm: Vllm, tmp_path: Path
) -> None:
    """vLLM's own test of its factory requires that a tier's class, as opposed to an instance, names no
    known source of hits.
    """
    assert vllm.tier.cache_hit_source == "elsewhere"
    for number, settings in enumerate(({}, {"url": f"disk://{tmp_path / 'url'}"})):
        assert Engine(vllm, tmp_path / str(number), **settings).tier.cache_hit_source == "disk"
    assert Engine(vllm, tmp_path, url=f"folder://{tmp_path / 'shared'}").tier.cache_hit_source == "elsewhere"
    assert vllm.tier.cache_hit_source == "elsewhere"


def test_settings_out_of_range_are_refused(vllm: Vllm, tmp_path: Path) -> None:
    for settings in (
        {"locality": "nowhere"},
        {"on_reset": "maybe"},
        {"admission": "maybe"},
        {"workers": 0},
        {"capacity_bytes": -1},
    ):
        with pytest.raises(InvalidArgumentError, match=next(iter(settings))):
            Engine(vllm, tmp_path, **settings)


def test_what_the_conformance_run_wrote_goes_with_it(
    vllm: Vllm, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an earlier version, each run left 1.5 GB on disk: the folder was never removed, and stores
    that tests left open continued to write.
    """
    example = types.ModuleType("vllm.v1.kv_offload.tiering.example.manager")
    vars(example)["ExampleSecondaryTierManager"] = types.SimpleNamespace(
        medium="DRAM", cache_hit_source="host"
    )
    monkeypatch.setitem(sys.modules, "vllm.v1.kv_offload.tiering.example", types.ModuleType("example"))
    monkeypatch.setitem(sys.modules, example.__name__, example)
    monkeypatch.setenv("KVPOOL_OFFLOAD", "tier")
    monkeypatch.setenv("KVPOOL_CONFORMANCE_REPLACED", str(tmp_path_factory.mktemp("report") / "replaced"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    offload_plugin.pytest_configure()
    memory = numpy.zeros((CHUNKS, CHUNK), numpy.int8)
    tiers = [example.ExampleSecondaryTierManager(spec_of(), memoryview(memory), "example") for _ in range(2)]
    for tier in tiers:
        tier.submit_store(TransferJob(1, [key(1)], [0], False, Context({key(1): 0})))
    tiers[0].shutdown()
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("kvpool-tier-")
    assert len(list(folder.iterdir())) == 2
    offload_plugin.pytest_unconfigure()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ClosedError, match="closed"):
        tiers[1].submit_store(TransferJob(2, [key(2)], [0], False, Context({key(2): 0})))
