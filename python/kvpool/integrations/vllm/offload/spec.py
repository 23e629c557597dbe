"""An offloading spec that replaces vLLM's manager with kvpool's. Workers and memory remain vLLM's.

To select it, set ``"spec_name": "KvpoolOffloadingSpec"``, and this module as ``"spec_module_path"``. It
accepts every setting of vLLM's ``CPUOffloadingSpec``. The setting ``eviction_policy`` names a policy of
``kvpool.BlockPool``.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from kvpool.integrations.vllm.offload.chunks import BY_TIME
from kvpool.integrations.vllm.offload.manager import KvpoolOffloadingManager

__all__ = ["KvpoolOffloadingSpec"]


class KvpoolOffloadingSpec(CPUOffloadingSpec):  # type: ignore[misc]  # vLLM is Any here
    """vLLM's CPU offloading with kvpool's manager.

    Raises:
        InvalidArgumentError: Raised by ``get_manager`` if ``eviction_policy`` is unknown, or a setting
            is out of range.
    """

    _manager: Any

    def get_manager(self) -> Any:
        """Returns the manager. The first call, which vLLM's scheduler makes, creates it."""
        if self._manager is None:
            extra = self.extra_config
            self._manager = KvpoolOffloadingManager(
                self.num_chunks,
                str(extra.get("eviction_policy", BY_TIME)),
                enable_events=self.kv_events_config.enable_kv_cache_events,
                store_threshold=int(extra.get("store_threshold", 0)),
                max_tracker_size=int(extra.get("max_tracker_size", 64_000)),
                info=getattr(self, "cpu_info", None),
            )
        return self._manager
