"""Which names of vLLM's the plug-in puts its own classes in, for which level, and how they are taken out again.

No file of vLLM's is changed. All of these names are looked up by vLLM at the moment of use, after its plug-ins have
been loaded; those that tests import by name are set in the modules that define them, too.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from vllm.v1.core import block_pool, kv_cache_coordinator, kv_cache_manager, kv_cache_utils
from vllm.v1.core import single_type_kv_cache_manager as managers
from vllm.v1.core.sched import scheduler
from vllm.v1.engine import core as engine

from . import hashing, lookup, offload
from .events import ExactEvents, StockEvents
from .manager import KVCacheManager
from .pool import BlockPool
from .settings import Settings
from .trail import Trail

if TYPE_CHECKING:
    from collections.abc import Iterator

Replacement = tuple[Any, str, Any]


def replacements(level: str) -> list[Replacement]:
    """What goes where at a level: module or class, name, value."""
    if level == "shadow":
        from .shadow import ShadowKVCacheManager, get_request_block_hasher

        return [
            (kv_cache_utils, "get_request_block_hasher", get_request_block_hasher),
            (engine, "get_request_block_hasher", get_request_block_hasher),
            (scheduler, "KVCacheManager", ShadowKVCacheManager),
            (kv_cache_manager, "KVCacheManager", ShadowKVCacheManager),
            *_lookups(),
        ]
    found: list[Replacement] = [
        (block_pool, "BlockPool", BlockPool),
        (kv_cache_coordinator, "BlockPool", BlockPool),
        (kv_cache_utils, "get_request_block_hasher", hashing.get_request_block_hasher),
        (engine, "get_request_block_hasher", hashing.get_request_block_hasher),
        *_lookups(),
    ]
    if level == "manager":
        found += [
            (scheduler, "KVCacheManager", KVCacheManager),
            (kv_cache_manager, "KVCacheManager", KVCacheManager),
        ]
    return found


def _lookups() -> list[Replacement]:
    """Lookups that are kvpool's in pools of kvpool's, and vLLM's in vLLM's own."""
    return [
        (managers.FullAttentionManager, "find_longest_cache_hit", classmethod(lookup.find_in_full_attention)),
        (managers.SlidingWindowManager, "find_longest_cache_hit", classmethod(lookup.find_in_sliding_window)),
        (managers.SingleTypeKVCacheManager, "_get_num_evictable_blocks", classmethod(lookup.count_evictable)),
    ]


def configure(settings: Settings) -> None:
    """Hands the settings to the classes that follow them."""
    BlockPool.events_class = ExactEvents if settings.events == "exact" else StockEvents
    BlockPool.eviction = settings.eviction
    BlockPool.journal_folder = settings.journal_folder
    Trail.folder = settings.shadow_folder


def install(settings: Settings) -> None:
    """Puts the level's classes into vLLM, for the life of the process, or nothing if one can't be put there."""
    configure(settings)
    # Known by name, for configurations that ask for them; whether or not this vLLM has such factories.
    with contextlib.suppress(ImportError):
        offload.register()
    for owner, name, value in replacements(settings.level or "pool"):
        setattr(owner, name, value)


@contextlib.contextmanager
def installed(level: str, settings: Settings | None = None) -> Iterator[None]:
    """A level's classes in vLLM, for the length of a block; then it is as it was. ``stock`` changes nothing.

    For benches and tests: what was made inside lives on, but lookups of classes are vLLM's again.
    """
    if level == "stock":
        yield
        return
    configure(settings or Settings())
    with contextlib.ExitStack() as stack:
        for owner, name, value in replacements(level):
            stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, value)
        yield
