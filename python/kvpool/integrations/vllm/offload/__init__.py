"""kvpool for vLLM's KV offloading. vLLM's own configuration selects it, and no file of vLLM is patched.

There are three ways to use kvpool. All are selected in ``--kv-transfer-config``
(docs/vllm-offloading.md contains the JSON):

- ``policies``: eviction policies for vLLM's ``CPUOffloadingManager``, which vLLM's tiering also uses.
  kvpool only decides the order of eviction.
- ``spec`` and ``manager``: kvpool's offloading manager in place of vLLM's. kvpool owns the slots, the
  references and the order of eviction.
- ``tier``: kvpool's store beneath vLLM's CPU memory, as a tier of vLLM's tiering. It keeps chunks on a
  disk, with a limited size and with verification.

``order``, ``chunks``, ``namespace``, ``identity``, ``excluded`` and ``adapters`` support these modules
and do not import vLLM. ``hooks`` wraps functions of vLLM for ``tier``. Importing this package does not
import vLLM, but importing its modules ``policies``, ``manager``, ``spec`` and ``tier`` does.
"""

from __future__ import annotations

import contextlib

__all__ = ["POLICIES", "SPEC", "TIER", "register"]

#: The names of the eviction policies in ``policies``, to be used as ``eviction_policy``.
POLICIES: tuple[str, ...] = ("kvpool_lru",)
#: The name of the offloading spec in ``spec``, to be used as ``spec_name``.
SPEC = "KvpoolOffloadingSpec"
#: The name of the secondary tier in ``tier``, to be used as ``type``.
TIER = "KvpoolStoreTier"


def register() -> None:
    """Registers the names with vLLM's factories, so that a configuration can use them without a module path.

    A plug-in that vLLM loads in each of its processes calls this. It imports vLLM's factories. Each
    policy is imported only when it is used. Further calls change nothing.

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
