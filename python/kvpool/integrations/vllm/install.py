"""Replaces the names of vLLM that :data:`.gate.REPLACED` lists, and restores them.

No file of vLLM is changed. vLLM looks up each of these names only when it uses it, which is after its
plug-ins have been loaded.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

from . import ended, gate, hashing, hints, lookup, offload, publisher
from .events import ExactEvents, StockEvents
from .manager import KVCacheManager
from .pool import BlockPool
from .settings import Settings
from .trail import Trail

if TYPE_CHECKING:
    from collections.abc import Iterator

Replacement = tuple[Any, str, Any]


def replacements(level: str) -> list[Replacement]:
    """Returns the replacements of a level: module or class, name, value.

    :data:`.gate.REPLACED` lists the names.
    """
    values = _values(level)
    found: list[Replacement] = []
    for path in gate.REPLACED[level]:
        module, _, name = path.partition(":")
        *classes, last = name.split(".")
        owner: Any = importlib.import_module(module)
        for one in classes:
            owner = getattr(owner, one)
        found.append((owner, last, values[name]))
    # vLLM's publisher of KV events is also replaced, if possible. Otherwise it remains and gets vLLM's
    # events, and all other replacements are made.
    if level != "shadow":
        found += publisher.replacements()
    if BlockPool.hinting is not None:
        hint_replacements = (
            hints.replacements()
        )  # asked at each level: it knows of which vLLM hints can be followed
        found += hint_replacements if level == "pool" else []
    if ended.wants_signals(BlockPool.eviction):
        ended.check()
        if level == "pool" and BlockPool.hinting is None:
            found += hints.replacements(f"the eviction {BlockPool.eviction} asks how requests end")
    return found


def _values(level: str) -> dict[str, Any]:
    """Returns the objects that replace vLLM's, by the name of the replaced object inside its module.

    The replaced lookups use kvpool's code for kvpool's pools, and vLLM's code for other pools.
    """
    hasher: Any = hashing.get_request_block_hasher
    manager: Any = KVCacheManager
    if level == "shadow":
        from .shadow import ShadowKVCacheManager, get_request_block_hasher

        hasher, manager = get_request_block_hasher, ShadowKVCacheManager
    return {
        "BlockPool": BlockPool,
        "KVCacheManager": manager,
        "get_request_block_hasher": hasher,
        "FullAttentionManager.find_longest_cache_hit": classmethod(lookup.find_in_full_attention),
        "SlidingWindowManager.find_longest_cache_hit": classmethod(lookup.find_in_sliding_window),
        "SingleTypeKVCacheManager._get_num_evictable_blocks": classmethod(lookup.count_evictable),
    }


def configure(settings: Settings) -> None:
    """Copies the plug-in's settings into class attributes that other classes read later."""
    BlockPool.events_class = ExactEvents if settings.events == "exact" else StockEvents
    BlockPool.eviction = settings.eviction
    BlockPool.hinting = settings.hints
    BlockPool.journal_folder = settings.journal_folder
    Trail.folder = settings.shadow_folder


def install(settings: Settings) -> None:
    """Puts the classes of the level into vLLM until the process ends: either all or none."""
    configure(settings)
    # These are the names that a configuration of vLLM's offloading may use. Versions of vLLM without
    # such factories are skipped.
    with contextlib.suppress(ImportError):
        offload.register()
    with contextlib.ExitStack() as stack:
        _put(replacements(settings.level or "pool"), stack)
        stack.pop_all()  # they stay


def _put(replaced: list[Replacement], stack: contextlib.ExitStack) -> None:
    """Replaces all objects of a level in vLLM. Adds the calls that undo this to ``stack``."""
    for owner, name, value in replaced:
        stack.callback(setattr, owner, name, vars(owner)[name])
        setattr(owner, name, value)


@contextlib.contextmanager
def installed(level: str, settings: Settings | None = None) -> Iterator[None]:
    """Puts the classes of a level into vLLM inside a ``with`` block, and restores vLLM afterwards.

    The level ``stock`` changes nothing. This function is for benchmarks and tests. Objects that were
    made inside the block remain usable afterwards, but the names refer to vLLM's classes again.
    """
    if level == "stock":
        yield
        return
    configure(settings or Settings())
    with contextlib.ExitStack() as stack:
        _put(replacements(level), stack)
        yield
