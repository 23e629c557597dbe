"""kvpool in vLLM's KV offloading, through vLLM's own configuration. No file of vLLM is patched.

There are three ways, all out of tree, and all selected in ``--kv-transfer-config``
(docs/vllm-offloading.md has the JSON):

- ``policies``: eviction policies for vLLM's ``CPUOffloadingManager``, for its tiering, too. kvpool
  decides the order.
- ``spec`` and ``manager``: kvpool's offloading manager instead of vLLM's. kvpool owns slots, references
  and order.
- ``tier``: kvpool's store beneath vLLM's CPU memory, as a tier of its tiering: bounded, checked chunks
  on a disk.

``order``, ``chunks``, ``namespace``, ``identity``, ``excluded`` and ``adapters`` support these and do
not import vLLM. ``hooks`` wraps functions of vLLM for ``tier``. Importing this package does not import
vLLM; its modules ``policies``, ``manager``, ``spec`` and ``tier`` do.
"""

from __future__ import annotations

import contextlib

__all__ = ["POLICIES", "SPEC", "TIER", "register"]

#: Names of the eviction policies in ``policies``, for ``eviction_policy``.
POLICIES: tuple[str, ...] = ("kvpool_lru",)
#: Name of the offloading spec in ``spec``, for ``spec_name``.
SPEC = "KvpoolOffloadingSpec"
#: Name of the secondary tier in ``tier``, for ``type``.
TIER = "KvpoolStoreTier"


def register() -> None:
    """Registers the names with vLLM's factories, so that a configuration needs no module path.

    It is for a plug-in that vLLM loads in each of its processes. It imports vLLM's factories, but each
    policy only when it is used. Calling it again changes nothing.

    Raises:
        ImportError: vLLM is not installed, or has no such factories.
    """
    from vllm.v1.kv_offload.cpu.policies.factory import CachePolicyFactory
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

    for name in POLICIES:
        with contextlib.suppress(ValueError):  # the factories raise this for a known name
            CachePolicyFactory.register_cache_policy(name, f"{__name__}.policies", name)
    with contextlib.suppress(ValueError):
        OffloadingSpecFactory.register_spec(SPEC, f"{__name__}.spec", SPEC)
    with contextlib.suppress(ValueError):
        SecondaryTierFactory.register_tier(TIER, f"{__name__}.tier", TIER)
