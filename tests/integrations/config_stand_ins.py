"""Stand-ins for vLLM's configuration. They are dataclasses with the names of vLLM's classes and of some
of their fields.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any


@dataclasses.dataclass
class HfConfig:
    """Stands in for a model configuration of transformers."""

    model_type = "llama"
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return dict(self.fields)


@dataclasses.dataclass
class ModelConfig:
    model: str = "llama"
    model_weights: str = ""
    revision: str | None = None
    code_revision: str | None = None
    trust_remote_code: bool = False
    dtype: Any = "bfloat16"
    seed: int = 0
    tokenizer: str = "llama"
    max_model_len: int = 4096
    quantization: str | None = None
    hf_config: Any = dataclasses.field(default_factory=HfConfig)
    multimodal_config: Any = None
    reads_media: dataclasses.InitVar[bool] = False

    def __post_init__(self, reads_media: bool) -> None:
        self.is_multimodal_model = reads_media


@dataclasses.dataclass
class MultiModalConfig:
    mm_processor_kwargs: dict[str, Any] | None = None
    mm_processor_cache_gb: float = 4.0


@dataclasses.dataclass
class CacheConfig:
    block_size: int = 16
    cache_dtype: str = "auto"
    gpu_memory_utilization: float = 0.9
    num_gpu_blocks: int | None = None


@dataclasses.dataclass
class LoadConfig:
    load_format: str = "auto"
    download_dir: str | None = None
    model_loader_extra_config: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class LoRAConfig:
    max_lora_rank: int = 16
    max_loras: int = 1
    target_modules: list[str] | None = None


@dataclasses.dataclass
class SchedulerConfig:
    max_num_seqs: int = 128
    scheduler_cls: Any = None

    def get_scheduler_cls(self) -> Any:
        return self.scheduler_cls or vars(sys.modules["vllm.v1.core.sched.scheduler"])["Scheduler"]


@dataclasses.dataclass
class SpeculativeConfig:
    method: str = "eagle"
    num_speculative_tokens: int = 3
    draft_model_config: ModelConfig | None = None
    draft_load_config: LoadConfig | None = None


@dataclasses.dataclass
class KVTransferConfig:
    engine_id: str = "engine"


@dataclasses.dataclass
class VllmConfig:
    model_config: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    cache_config: CacheConfig = dataclasses.field(default_factory=CacheConfig)
    load_config: LoadConfig = dataclasses.field(default_factory=LoadConfig)
    scheduler_config: SchedulerConfig = dataclasses.field(default_factory=SchedulerConfig)
    lora_config: LoRAConfig | None = None
    speculative_config: SpeculativeConfig | None = None
    kv_transfer_config: KVTransferConfig = dataclasses.field(default_factory=KVTransferConfig)
    additional_config: Any = dataclasses.field(default_factory=dict)
    instance_id: str = ""
