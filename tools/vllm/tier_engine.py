"""Runs one engine of tools/vllm_tier_check.py: a real vLLM on the CPU that offloads its KV to kvpool's
tier.

    python -m tools.vllm.tier_engine --prompts 60 --blocks 40 --folder kv --model-folder model \\
        --result record.json

vLLM's own offloading worker copies with streams of a GPU. ``CpuSpec`` replaces it by a worker that
copies between tensors of the CPU. Everything else is vLLM's: connector, spec, manager and host memory.
The configuration adds kvpool's tier.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from tools.vllm.check_engine import MODELS, engine_settings, make_prompts, sampling, write_model


def spec_class() -> type[Any]:
    """Makes a ``TieringOffloadingSpec`` with a worker that copies on the CPU."""
    base = importlib.import_module("vllm.v1.kv_offload.base")
    region = importlib.import_module("vllm.v1.kv_offload.cpu.shared_offload_region").SharedOffloadRegion
    spec = importlib.import_module("vllm.v1.kv_offload.tiering.spec").TieringOffloadingSpec
    torch = importlib.import_module("torch")

    class CpuWorker(base.OffloadingWorker):  # type: ignore[name-defined, misc]
        """Copies blocks immediately, and reports the copies as completed at the next query."""

        def __init__(self, caches: Any, memory: Any) -> None:
            pages = [cache.page_size_bytes for cache in caches.tensors]
            self.blocks = [
                cache.tensor.view(torch.int8).view(-1, page)
                for cache, page in zip(caches.tensors, pages, strict=True)
            ]
            self.chunks = [memory.create_next_worker_view(page) for page in pages]
            self.tensors_of = [sorted({ref.tensor_idx for ref in refs}) for refs in caches.group_data_refs]
            self.memory = memory
            self.ended: list[Any] = []

        def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
            return self.copy(
                job_id, src_spec, dst_spec.block_ids, self.blocks, self.chunks, src_spec.block_ids
            )

        def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
            return self.copy(
                job_id, dst_spec, dst_spec.block_ids, self.chunks, self.blocks, src_spec.block_ids
            )

        def copy(self, job: int, gpu: Any, into: Any, source: Any, target: Any, of: Any) -> bool:
            first, moved = 0, 0
            for group, count in enumerate(gpu.group_sizes):
                ids = slice(first, first + count)
                for tensor in self.tensors_of[group]:
                    target[tensor][torch.as_tensor(into[ids])] = source[tensor][torch.as_tensor(of[ids])]
                    moved += count * source[tensor].shape[1]
                first += count
            assert first == len(into) == len(of), "a chunk is a block here"
            self.ended.append(base.TransferResult(job, success=True, transfer_size=moved, transfer_time=1e-6))
            return True

        def get_finished(self) -> list[Any]:
            ended, self.ended = self.ended, []
            return ended

        def wait(self, job_ids: set[int]) -> None:
            """Returns immediately, because every copy is already complete."""

        def shutdown(self) -> None:
            self.blocks.clear()
            self.chunks.clear()
            self.memory.cleanup()

    class CpuSpec(spec):  # type: ignore[misc, valid-type]
        def get_worker(self, kv_caches: Any) -> Any:
            """Makes the worker that copies on the CPU. vLLM's own method needs a GPU."""
            memory = region(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = CpuWorker(kv_caches, memory)
            return self._worker

    return CpuSpec


def __getattr__(name: str) -> Any:
    """Returns the spec class. vLLM imports it from this module by name. It is made on demand, so that
    this file can be imported without vLLM.
    """
    if name == "CpuSpec":
        globals()[name] = made = spec_class()
        return made
    raise AttributeError(name)


def offloading(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the value of --kv-transfer-config as a user would write it, except that the worker is
    replaced.
    """
    tier = {
        "type": "KvpoolStoreTier",
        "module_path": "kvpool.integrations.vllm.offload.tier",
        "capacity_bytes": 1 << 30,
        "free_floor_bytes": 0,
        "admission": "always",
        "on_reset": "keep",
    }
    tier |= {"url": options.url} if options.url else {"root_dir": str(options.folder)}
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "CpuSpec",
            "spec_module_path": "tools.vllm.tier_engine",
            "cpu_bytes_to_use": 1 << 26,
            "secondary_tiers": [tier],
        },
    }


def find_tier(core: Any) -> Any:
    """Returns kvpool's tier, which the scheduler's side of the connector holds."""
    scheduler = core.scheduler.connector.connector_scheduler
    (tier,) = scheduler.manager.secondary_tiers
    return tier


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", choices=list(MODELS), default="full")
    parser.add_argument("--prompts", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument(
        "--folder",
        type=Path,
        help="folder of a tier on a disk; without it and without --url there is no tier",
    )
    parser.add_argument("--url", help="address of a shared tier")
    parser.add_argument(
        "--model-folder",
        type=Path,
        required=True,
        help="folder of the model, which is written if it is missing",
    )
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args(argv)
    vllm = importlib.import_module("vllm")
    if not (options.model_folder / "config.json").exists():
        write_model(options.model_folder, options.model)
    offloads = bool(options.folder or options.url)
    more = {"kv_transfer_config": offloading(options)} if offloads else {}
    llm = vllm.LLM(**engine_settings(str(options.model_folder), options.blocks), **more)
    core = llm.llm_engine.engine_core.engine_core
    prompts = make_prompts(options.prompts)
    parameters = [vllm.SamplingParams(**one) for one in sampling("n=1", len(prompts))]
    begun = time.monotonic()
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], parameters, use_tqdm=False)
    found: dict[str, Any] = {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "cached": sum(output.num_cached_tokens for output in outputs),
        "groups": core.scheduler.kv_cache_manager.num_kv_cache_groups,
        "seconds": time.monotonic() - begun,
        "store": None,
    }
    if offloads:
        tier = find_tier(core)
        tier.drain_jobs()
        stats = tier._store.stats()
        names = (
            "objects",
            "restored",
            "loads",
            "writes",
            "misses",
            "damaged",
            "failed",
            "timed_out",
            "known",
        )
        found["store"] = {name: getattr(stats, name) for name in names}
    options.result.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
