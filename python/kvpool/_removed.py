"""Names of earlier versions: removed names with their replacements, and renamed names that still work."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

#: Maps each removed name, with its module, to the sentence of the error message that describes the
#: replacement.
REPLACEMENTS = {
    "kvpool.Sequences": "use CacheManager, or a BlockPool or TieredPool with block tables of your own",
    "kvpool.errors.StaleSequenceError": "kvpool.Sequences, which raised it, was removed: use CacheManager",
    **dict.fromkeys(
        (
            f"kvpool.testing.{name}"
            for name in ("Content", "ReferenceBlock", "ReferenceManager", "ReferencePool", "ReferenceRequest")
        ),
        "compare observe_pool of a BlockPool, or observe_manager of a CacheManager, before and after a call",
    ),
    "kvpool.testing.stats_dict": "read the attributes of CacheManager.stats()",
}


class Renamed(NamedTuple):
    """The entry of a method or property that has a new name."""

    #: The expression that replaces the old name. The warning contains it.
    replacement: str
    #: Calls the new method. The first argument is the manager or pool, the others are those of the old
    #: method.
    call: Callable[..., Any]
    is_property: bool = False


def _moved(path: str) -> Renamed:
    """Returns the entry of a method that now belongs to an attribute of the object, such as ``clock``."""
    facet, _, method = path.partition(".")

    def call(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        target = getattr(owner, facet)
        return (getattr(target, method) if method else target)(*args, **kwargs)

    return Renamed(path, call)


#: The old names that ``CacheManager`` and ``BlockPool`` both had, each with its replacement.
_BOTH: Final = {
    "advance_time": _moved("clock.advance"),
    "observe_time": _moved("clock.observe"),
    "tenant_blocks": _moved("retention.tenant_blocks"),
    "retention_stats": _moved("retention.stats"),
    "journal_stats": _moved("journal.stats"),
    "flush_journal": _moved("journal.flush"),
    "journal_image": _moved("journal.image"),
    "save_journal": _moved("journal.save"),
    "check_invariants": _moved("diagnose.check_invariants"),
    "check_policy": _moved("diagnose.check_policy"),
    "poison_reason": Renamed("diagnose.poison_reason", lambda owner: owner.diagnose.poison_reason, True),
    "scrub": _moved("diagnose.scrub"),
    "state_digest": _moved("diagnose.state_digest"),
    "state_digest_from_scratch": _moved("diagnose.state_digest_from_scratch"),
    "free_order": _moved("diagnose.free_order"),
    "eviction_order": _moved("diagnose.eviction_order"),
    "advice": _moved("diagnose.advice"),
    "metrics": _moved("diagnose.metrics"),
}


def _release_batch(
    manager: Any,
    request_ids: Any,
    *,
    after_step: Any = None,
    until: Any = None,
    finish_reasons: Any = None,
    output_tokens: Any = None,
) -> None:
    manager.release(
        request_ids,
        after_step=after_step,
        until=until,
        finish_reason=finish_reasons,
        output_tokens=output_tokens,
    )


#: The old names of the methods and properties of ``CacheManager``, each with its replacement.
MANAGER: Final = {
    **_BOTH,
    "append_tokens": Renamed(
        "append",
        lambda manager, request_id, token_ids, *, lookahead=0, multimodal=None: manager.append(
            request_id, token_ids, lookahead=lookahead, multimodal=multimodal
        ),
    ),
    "commit_batch": Renamed(
        "commit", lambda manager, request_ids, computed_tokens: manager.commit(request_ids, computed_tokens)
    ),
    "fork_batch": Renamed("fork", lambda manager, parent_ids, child_ids: manager.fork(parent_ids, child_ids)),
    "truncate_batch": Renamed(
        "truncate",
        lambda manager, request_ids, num_tokens, *, after_step=None, until=None: manager.truncate(
            request_ids, num_tokens, after_step=after_step, until=until
        ),
    ),
    "release_batch": Renamed("release", _release_batch),
    "fit_groups": Renamed(
        "fit(..., by_group=True)",
        lambda manager, *args, **kwargs: manager.fit(*args, by_group=True, **kwargs),
    ),
    "extend_encoder": Renamed(
        "extend(..., encoder=True)",
        lambda manager, request_id, num_tokens: manager.extend(request_id, num_tokens, encoder=True),
    ),
    "cursor": Renamed("prepare", lambda manager, request_id: manager.prepare(request_id)),
    "begin_swap_out": _moved("swaps.begin_out"),
    "begin_swap_in": _moved("swaps.begin_in"),
    "fit_swap_out": _moved("swaps.fit_out"),
    "fit_swap_in": _moved("swaps.fit_in"),
    "complete_swap": _moved("swaps.complete"),
    "abort_swap": _moved("swaps.abort"),
    "host_stats": _moved("swaps.host_stats"),
    "retain": Renamed(
        "retention.retain", lambda manager, request_id, ranges: manager.retention.retain(request_id, ranges)
    ),
    "retain_prefix": Renamed(
        "retention.retain",
        lambda manager, prompt, ranges, extra=None: manager.retention.retain(prompt, ranges, extra),
    ),
    "end_of_life": Renamed(
        "retention.end_of_life",
        lambda manager, request_id, start_token=0: manager.retention.end_of_life(request_id, start_token),
    ),
    "end_of_life_of": Renamed(
        "retention.end_of_life",
        lambda manager, prompt, start_token=0, extra=None: manager.retention.end_of_life(
            prompt, start_token, extra
        ),
    ),
    "end_session": _moved("retention.end_session"),
    "set_tenant": _moved("retention.set_tenant"),
    "num_groups": Renamed("len(groups) or 1", lambda manager: len(manager.groups) or 1, True),
    "epoch": Renamed("stats().pool.epoch", lambda manager: manager.stats().pool.epoch, True),
}

#: The old names of the methods and properties of ``BlockPool``, each with its replacement.
POOL: Final = {
    **_BOTH,
    "release_table": Renamed(
        "release(..., tail_first=True)", lambda pool, block_ids: pool.release(block_ids, tail_first=True)
    ),
    "release_after": Renamed(
        "release(..., after_step=...)",
        lambda pool, block_ids, step: pool.release(block_ids, after_step=step),
    ),
    "acquire_match": Renamed("acquire", lambda pool, found: pool.acquire(found)),
    "acquire_registered": Renamed("acquire", lambda pool, link: pool.acquire(link)),
    "ref_counts": Renamed(
        "ref_count", lambda pool, block_ids, *, out=None: pool.ref_count(block_ids, out=out)
    ),
    "states": Renamed("state", lambda pool, block_ids: pool.state(block_ids)),
    "num_holders": _moved("diagnose.num_holders"),
    "is_registered": _moved("diagnose.is_registered"),
    "is_computed": _moved("diagnose.is_computed"),
    "hash_of": _moved("diagnose.hash_of"),
    "copies": _moved("diagnose.copies"),
    "retain": _moved("retention.retain"),
    "assign_tenant": _moved("retention.assign_tenant"),
    "epoch": Renamed("stats().epoch", lambda pool: pool.stats().epoch, True),
}

#: Maps the name of each class to its table of old names.
RENAMED: Final[dict[str, dict[str, Renamed]]] = {"CacheManager": MANAGER, "BlockPool": POOL}


def renamed(owner: Any, name: str) -> Any:
    """Returns the attribute for an old name of an object, and warns when it is used.

    This function is the ``__getattr__`` of the classes, so Python calls it only for attributes that they do
    not have. ``install`` sets it from Python, because a ``__getattr__`` in the extension would slow down
    every call.

    Raises:
        AttributeError: The class never had this name.
    """
    owner_class = type(owner).__name__
    entry = RENAMED[owner_class].get(name)
    if entry is None:
        raise AttributeError(f"{owner_class!r} object has no attribute {name!r}", name=name, obj=owner)
    message = f"{owner_class}.{name} is called {owner_class}.{entry.replacement} now"
    if entry.replacement.startswith("len("):
        message = f"{owner_class}.{name} was removed: use {entry.replacement}"
    if entry.is_property:
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return entry.call(owner)

    @functools.wraps(entry.call)
    def call(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return entry.call(owner, *args, **kwargs)

    call.__name__ = name
    call.__qualname__ = f"{owner_class}.{name}"
    return call


def install(*classes: type) -> None:
    """Makes the old names of the given classes work, with a deprecation warning."""
    for one in classes:
        setattr(one, "__getattr__", renamed)  # noqa: B010


def missing(module: str, name: str) -> AttributeError:
    """Returns the error for a name that a module does not have.

    For a removed name, its message contains the replacement.
    """
    replacement = REPLACEMENTS.get(f"{module}.{name}")
    if replacement:
        return AttributeError(f"{module}.{name} was removed: {replacement}", name=name)
    return AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
