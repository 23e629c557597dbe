"""The changes that ``tools.sglang.identity`` makes between two starts of SGLang over one store."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from typing import TYPE_CHECKING, Any, Final

from sglang.srt.lora.lora_registry import LoRARef

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["CHANGES", "Change", "Place", "draft_of"]

#: Configuration of a model that SGLang accepts. The weights of the model are never read.
LLAMA: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
DRAFT: Final = {"speculative_num_steps": 2, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 3}
COMMITS: Final = ("1" * 40, "2" * 40)


class Place:
    """The files of two starts: a model, a draft model, an adapter, and a cache of the Hugging Face hub.

    Args:
        root: A new folder, into which the files are written.
    """

    def __init__(self, root: Path) -> None:
        self.store, self.model, self.draft, self.adapter, self.hub = (
            root / name for name in ("store", "model", "draft", "adapter", "hub")
        )
        for folder in (self.model, self.draft):
            folder.mkdir(parents=True)
            (folder / "config.json").write_text(json.dumps(LLAMA))
            (folder / "model.safetensors").write_bytes(b"one" * 1000)
        self.adapter.mkdir()
        (self.adapter / "adapter_config.json").write_text(
            '{"target_modules": ["q_proj"], "r": 8, "lora_alpha": 8}'
        )
        (self.adapter / "adapter_model.safetensors").write_bytes(b"one" * 1000)
        self.store.mkdir()
        self.scales = root / "scales.json"
        self.scales.write_text("{}")
        repository = self.hub / "models--org--tiny"
        for commit in COMMITS:
            shutil.copytree(self.model, repository / "snapshots" / commit)
        (repository / "refs").mkdir()
        for branch in ("main", "branch"):
            (repository / "refs" / branch).write_text(COMMITS[0])

    def move(self, branch: str) -> None:
        (self.hub / "models--org--tiny" / "refs" / branch).write_text(COMMITS[1])

    def lora(self, path: Path | str) -> Any:
        return LoRARef(lora_id=LoRARef.deterministic_id("a", str(path)), lora_name="a", lora_path=str(path))


def rewrite(folder: Path) -> None:
    """Replaces the weights in a folder by others. The files keep their sizes and modification times."""
    for path in folder.glob("*.safetensors"):
        times = path.stat()
        path.write_bytes(b"two" * 1000)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@dataclasses.dataclass(frozen=True)
class Change:
    """A change between two starts of SGLang over one store.

    Attributes:
        what: The name of the change.
        hit: Whether the second start finds the pages that the first start has stored.
        first: Settings of the first start, with environment variables under "env".
        second: Settings of the second start.
        alter: A function that changes files between the starts.
    """

    what: str
    hit: bool
    first: Callable[[Place], dict[str, Any]] = lambda _place: {}
    second: Callable[[Place], dict[str, Any]] = lambda _place: {}
    alter: Callable[[Place], Any] = lambda _place: None


def setting(hit: bool, **settings: Any) -> Change:
    return Change(f"--{next(iter(settings))}".replace("_", "-"), hit, second=lambda _place: settings)


def variable(hit: bool, name: str, value: str) -> Change:
    return Change(name, hit, second=lambda _place: {"env": {name: value}})


def draft_of(place: Place, **changed: Any) -> dict[str, Any]:
    return {
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": str(place.draft),
        **DRAFT,
        **changed,
    }


def hub(place: Place, **changed: Any) -> dict[str, Any]:
    return {"model_path": "org/tiny", "download_dir": str(place.hub), **changed}


ROPE: Final = json.dumps({"rope_scaling": {"rope_type": "linear", "factor": 2.0}})
CHANGES: Final = (
    Change("nothing", True),
    *(
        setting(True, **{name: value})
        for name, value in {
            "port": 31000,
            "host": "0.0.0.0",
            "log_level": "debug",
            "mem_fraction_static": 0.4,
            "max_running_requests": 7,
            "max_total_tokens": 4096,
            "chunked_prefill_size": 512,
            "schedule_policy": "lpm",
            "random_seed": 7,
            "served_model_name": "other",
            "enable_metrics": True,
            "api_key": "secret",
            "stream_interval": 4,
            "hicache_ratio": 3.0,
            "hicache_write_policy": "write_back",
            "watchdog_timeout": 600,
            "tokenizer_worker_num": 2,
            "radix_eviction_policy": "lfu",
        }.items()
    ),
    *(
        setting(False, **{name: value})
        for name, value in {
            "load_format": "dummy",
            "modelopt_quant": "fp8",
            "rl_quant_profile": "/profile",
            "model_loader_extra_config": '{"enable_multithread_load": true}',
            "custom_weight_loader": ["package.load"],
            "weight_version": "2",
            "json_model_override_args": ROPE,
            "quantization": "fp8",
            "dtype": "float32",
            "kv_cache_dtype": "fp8_e4m3",
            "context_length": 256,
            "attention_backend": "triton",
            "trust_remote_code": True,
            "tp_size": 2,
        }.items()
    ),
    variable(True, "SGLANG_RUN_ID", "7"),
    variable(True, "SGLANG_LOG_MS", "1"),
    variable(False, "SGLANG_ROPE_CACHE_FP32", "1"),
    variable(False, "SGLANG_OF_A_LATER_VERSION", "1"),
    Change(
        "times of the weights", True, alter=lambda place: os.utime(place.model / "model.safetensors", (1, 1))
    ),
    Change("weights of the same size and time", False, alter=lambda place: rewrite(place.model)),
    Change(
        "model configuration",
        False,
        alter=lambda place: (place.model / "config.json").write_text(
            json.dumps({**LLAMA, "rope_theta": 5e5})
        ),
    ),
    Change("hub, nothing", True, first=hub, second=hub),
    Change(
        "hub, the served branch moves", False, first=hub, second=hub, alter=lambda place: place.move("main")
    ),
    Change(
        "hub, another branch moves",
        True,
        first=lambda place: hub(place, revision=COMMITS[0]),
        second=lambda place: hub(place, revision=COMMITS[0]),
        alter=lambda place: place.move("main"),
    ),
    Change(
        "hub, --revision BRANCH, the branch moves",
        False,
        first=lambda place: hub(place, revision="branch"),
        second=lambda place: hub(place, revision="branch"),
        alter=lambda place: place.move("branch"),
    ),
    Change("hub, another --revision", False, first=hub, second=lambda place: hub(place, revision=COMMITS[1])),
    Change("draft, nothing", True, first=draft_of, second=draft_of),
    Change("a draft", False, second=draft_of),
    Change("draft weights", False, first=draft_of, second=draft_of, alter=lambda place: rewrite(place.draft)),
    Change(
        "--speculative-draft-model-path",
        False,
        first=draft_of,
        second=lambda place: draft_of(place, speculative_draft_model_path=str(place.model)),
    ),
    Change(
        "--speculative-draft-model-revision",
        False,
        first=lambda place: draft_of(
            place, speculative_draft_model_path="org/tiny", download_dir=str(place.hub)
        ),
        second=lambda place: draft_of(
            place, speculative_draft_model_path="org/tiny", download_dir=str(place.hub)
        ),
        alter=lambda place: place.move("main"),
    ),
    *(
        Change(
            what,
            hit,
            first=lambda place: {"lora_paths": [place.lora(place.adapter)]},
            second=lambda place: {"lora_paths": [place.lora(place.adapter)]},
            alter=alter,
        )
        for what, hit, alter in (
            ("adapter, nothing", True, lambda _place: None),
            (
                "adapter, its times",
                True,
                lambda place: os.utime(place.adapter / "adapter_model.safetensors", (1, 1)),
            ),
            ("adapter replaced at its path", False, lambda place: rewrite(place.adapter)),
        )
    ),
    Change(
        "adapter whose files are unknown",
        False,
        first=lambda place: {"lora_paths": [place.lora("org/unknown")]},
        second=lambda place: {"lora_paths": [place.lora("org/unknown")]},
    ),
    Change(
        "a file of scales",
        False,
        first=lambda place: {"quantization_param_path": str(place.scales)},
        second=lambda place: {"quantization_param_path": str(place.scales)},
        alter=lambda place: place.scales.write_text('{"kv": 2}'),
    ),
)
