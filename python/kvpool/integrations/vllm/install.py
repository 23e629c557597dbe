"""What the plug-in puts into the names of vLLM's that :data:`.gate.REPLACED` lists, and how it is taken
out again.

No file of vLLM's is changed. All of these names are looked up by vLLM at the moment of use, after its
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
    """What goes where at a level: module or class, name, value. Where is for :data:`.gate.REPLACED` to
    say.
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
    # Beside those: where it is another, vLLM's publisher gets vLLM's events, and all else is as it was.
    if level != "shadow":
        found += publisher.replacements()
    if BlockPool.hinting is not None:
        saying = hints.replacements()  # asked at each level: it knows of which vLLM hints can be followed
        found += saying if level == "pool" else []
    if ended.hears(BlockPool.eviction):
        ended.check()
        if level == "pool" and BlockPool.hinting is None:
            found += hints.replacements(f"the eviction {BlockPool.eviction} asks how requests end")
    return found


def _values(level: str) -> dict[str, Any]:
    """What goes where, by the name in its module. Lookups are kvpool's in pools of kvpool's, and vLLM's
    in others.
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
    """Hands the settings to the classes that follow them."""
    BlockPool.events_class = ExactEvents if settings.events == "exact" else StockEvents
    BlockPool.eviction = settings.eviction
    BlockPool.hinting = settings.hints
    BlockPool.journal_folder = settings.journal_folder
    Trail.folder = settings.shadow_folder


def install(settings: Settings) -> None:
    """Puts the level's classes into vLLM, for the life of the process, or nothing if one can't be put
    there.
    """
    configure(settings)
    # Known by name, for configurations that ask for them; whether or not this vLLM has such factories.
    with contextlib.suppress(ImportError):
        offload.register()
    with contextlib.ExitStack() as stack:
        _put(replacements(settings.level or "pool"), stack)
        stack.pop_all()  # they stay


def _put(replaced: list[Replacement], stack: contextlib.ExitStack) -> None:
    """Puts all of it in its place; the stack has how to take it out again."""
    for owner, name, value in replaced:
        stack.callback(setattr, owner, name, vars(owner)[name])
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
        _put(replacements(level), stack)
        yield
