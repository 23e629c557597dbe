"""kvpool in vLLM's KV offloading, by vLLM's own configuration: no file of vLLM is patched.

Three ways in, all out of tree and all chosen in ``--kv-transfer-config`` (docs/vllm-offloading.md has
the JSON):

- ``policies``: eviction policies for vLLM's ``CPUOffloadingManager``, for its tiering, too. The order
  is kvpool's.
- ``spec`` and ``manager``: kvpool's offloading manager in place of vLLM's. Slots, references and order
  are kvpool's.
- ``tier``: kvpool's store beneath vLLM's CPU memory, a tier of its tiering: chunks on a disk, checked
  and bounded.

``order``, ``chunks``, ``namespace``, ``identity``, ``excluded`` and ``adapters`` serve these and import
no vLLM. ``hooks`` wraps functions of vLLM for ``tier``. Importing this package imports no vLLM; its
modules ``policies``, ``manager``, ``spec`` and ``tier`` do.
"""

from __future__ import annotations

import contextlib

__all__ = ["POLICIES", "SPEC", "TIER", "register"]

#: Names of the eviction policies in ``policies``, as ``eviction_policy`` says them.
POLICIES: tuple[str, ...] = ("kvpool_lru",)
#: Name of the offloading spec in ``spec``, as ``spec_name`` says it.
SPEC = "KvpoolOffloadingSpec"
#: Name of the secondary tier in ``tier``, as ``type`` says it.
TIER = "KvpoolStoreTier"


def register() -> None:
    """Makes the names known to vLLM's factories, so that a configuration needs no module path.

    For a plug-in that vLLM loads in each of its processes. Imports vLLM's factories, and no policy
    before it is asked for. Calling it again changes nothing.

    Raises:
        ImportError: vLLM is not installed, or one without these factories.
    """
    from vllm.v1.kv_offload.cpu.policies.factory import CachePolicyFactory
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

    for name in POLICIES:
        with contextlib.suppress(ValueError):  # what the factories raise for a name that they know already
            CachePolicyFactory.register_cache_policy(name, f"{__name__}.policies", name)
    with contextlib.suppress(ValueError):
        OffloadingSpecFactory.register_spec(SPEC, f"{__name__}.spec", SPEC)
    with contextlib.suppress(ValueError):
        SecondaryTierFactory.register_tier(TIER, f"{__name__}.tier", TIER)
