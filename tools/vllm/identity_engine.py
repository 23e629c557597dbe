"""Runs the engines of tools/vllm_identity_check.py: real vLLM engines on the CPU, each in its own
process.

    python -m tools.vllm.identity_engine --scratch folder --result record.json

Imports vLLM once and forks a process for each start, because the import takes longer than everything
else that an engine does here.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.vllm.check_engine import BLOCK_SIZE, VOCABULARY
from tools.vllm.identity_cases import BASES, CASES, Case, Start, write_files
from tools.vllm.tier_engine import find_tier, offloading

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CAPACITY: Final = 1 << 24


def prompts() -> list[list[int]]:
    """Makes prompts of several blocks that share a prefix."""
    source = random.Random(5)
    shared = [source.randrange(3, VOCABULARY) for _ in range(3 * BLOCK_SIZE)]
    return [shared + [source.randrange(3, VOCABULARY) for _ in range(30 + 11 * one)] for one in range(6)]


def expand(value: Any, files: Path) -> Any:
    if isinstance(value, dict):
        return {key: expand(one, files) for key, one in value.items()}
    return value.replace("{files}", str(files)) if isinstance(value, str) else value


def run_start(
    start: Start, files: Path, store: Path | None, change: Callable[[Path], None] | None
) -> dict[str, Any]:
    """Runs one engine in this process."""
    os.environ.update(start.environment)
    vllm = importlib.import_module("vllm")
    options = {
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": BLOCK_SIZE,
        "num_gpu_blocks_override": 80,
        "max_model_len": 384,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "disable_log_stats": False,
        **expand(start.options, files),
    }
    if store is not None:
        settings = offloading(argparse.Namespace(url=None, folder=store))
        tier = settings["kv_connector_extra_config"]["secondary_tiers"][0]
        tier |= {"capacity_bytes": CAPACITY, "on_reset": "renew", **start.tier}
        options["kv_transfer_config"] = settings
    llm = vllm.LLM(**options)
    found: dict[str, Any] = {"tokens": [], "cached": 0, "loads": 0, "writes": 0}
    for action in start.actions:
        if action == "files":
            assert change is not None
            change(files)
        elif action == "reset":
            assert llm.reset_prefix_cache()
        elif action == "reload":
            llm.collective_rpc(load_weights, args=(str(files / "full" / "model.safetensors"),))
        else:
            parameters = vllm.SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
            adapter = start.adapter and importlib.import_module("vllm.lora.request").LoRARequest(
                **expand(start.adapter, files)
            )
            outputs = llm.generate(
                [{"prompt_token_ids": one} for one in prompts()],
                parameters,
                use_tqdm=False,
                lora_request=adapter,
            )
            found["tokens"] = [list(output.outputs[0].token_ids) for output in outputs]
            found["cached"] = sum(output.num_cached_tokens for output in outputs)
    if store is not None:
        tier = find_tier(llm.llm_engine.engine_core.engine_core)
        tier._drain()
        stats = tier._store.stats()
        found |= {name: getattr(stats, name) for name in ("loads", "writes", "damaged", "failed")}
        tier.shutdown()
    return found


def load_weights(worker: Any, path: str) -> None:
    """Loads other weights into a running model, as a program that trains the model does."""
    tensors = importlib.import_module("safetensors.torch").load_file(path)
    # Replace the embedding, because the CPU's linear layers have packed their weights and accept no
    # others.
    name = "model.embed_tokens.weight"
    worker.model_runner.model.load_weights(iter([(name, tensors[name])]))


def forked(task: Callable[[], dict[str, Any]], result: Path) -> dict[str, Any]:
    """Runs a task in a forked process and returns its result. If the task raises an error, the result
    has the key ``error``.
    """
    result.unlink(missing_ok=True)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 0
        try:
            result.write_text(json.dumps(task()), encoding="utf-8")
        except BaseException:  # the process ends here after any error
            result.write_text(json.dumps({"error": traceback.format_exc(limit=-6)}), encoding="utf-8")
            code = 1
        sys.stdout.flush()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    if not result.exists():
        return {"error": f"the process ended with status {status}"}
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


class Bench:
    """The files of the cases, and the stores that first starts have filled."""

    def __init__(self, scratch: Path) -> None:
        self.files, self.pristine = scratch / "files", scratch / "pristine"
        self.store, self.result, self.scratch = scratch / "store", scratch / "start.json", scratch
        write_files(self.files)
        shutil.copytree(self.files, self.pristine, symlinks=True)
        self.bases: dict[str, dict[str, Any]] = {}
        self.stocks: dict[str, dict[str, Any]] = {}

    def restore(self) -> None:
        shutil.rmtree(self.files)
        shutil.copytree(self.pristine, self.files, symlinks=True)

    def start(self, start: Start, case: Case, *, stored: bool) -> dict[str, Any]:
        store = self.store if stored else None
        return forked(lambda: run_start(start, self.files, store, case.files), self.result)

    def run(self, case: Case) -> dict[str, Any]:
        begun = time.monotonic()
        base, kept = BASES[case.base], self.scratch / f"store-{case.base}"
        shutil.rmtree(self.store, ignore_errors=True)
        if case.base not in self.bases:
            self.bases[case.base] = self.start(base, case, stored=True)
            self.store.mkdir(exist_ok=True)  # a broken start may have created none
            shutil.copytree(self.store, kept)
        else:
            shutil.copytree(kept, self.store)
        found: dict[str, Any] = {
            "case": case.name,
            "base": case.base,
            "hits": case.hits,
            "first": self.bases[case.base],
        }
        if case.during is not None:
            found["during"] = self.start(base.with_(case.during), case, stored=True)
            if case.restored:
                self.restore()
        elif case.files is not None:
            case.files(self.files)
        second = base.with_(case.change)
        if case.hits or (case.during is not None and case.restored):
            # Key of the stock engines that were already run. It has all fields of the first start that
            # determine its tokens.
            if case.base not in self.stocks:
                self.stocks[case.base] = self.start(base, case, stored=False)
            found["stock"] = self.stocks[case.base]
        else:
            found["stock"] = self.start(second, case, stored=False)
        found["second"] = self.start(second, case, stored=True)
        self.restore()
        return {**found, "seconds": time.monotonic() - begun}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--case", action="append", default=[])
    options = parser.parse_args(argv)
    os.environ["HF_HUB_CACHE"] = str(options.scratch / "files" / "hub")
    os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"  # no network: only the cache is available
    os.environ["KVPOOL_CONTENT_CACHE"] = str(options.scratch / "content.json")
    importlib.import_module("vllm.v1.engine.core")
    importlib.import_module("kvpool.integrations.vllm.offload.tier")
    bench = Bench(options.scratch)
    records = []
    for case in CASES:
        if not options.case or any(part in case.name for part in options.case):
            records.append(bench.run(case))
            options.result.write_text(json.dumps(records), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
