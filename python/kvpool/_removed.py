"""Names that earlier versions had, and what replaces each."""

from __future__ import annotations

#: By module and name.
REPLACEMENTS = {
    "kvpool.Sequences": "use CacheManager, or a BlockPool or TieredPool with block tables of your own",
    "kvpool.errors.StaleSequenceError": "kvpool.Sequences, which raised it, was removed, too: use CacheManager",
    **dict.fromkeys(
        (
            f"kvpool.testing.{name}"
            for name in ("Content", "ReferenceBlock", "ReferenceManager", "ReferencePool", "ReferenceRequest")
        ),
        "compare observe_pool of a BlockPool, or observe_manager of a CacheManager, before and after a call",
    ),
    "kvpool.testing.stats_dict": "read the attributes of CacheManager.stats()",
}


def missing(module: str, name: str) -> AttributeError:
    """Returns the error for a name that a module does not have; for a removed name it says what to use."""
    replacement = REPLACEMENTS.get(f"{module}.{name}")
    if replacement:
        return AttributeError(f"{module}.{name} was removed: {replacement}", name=name)
    return AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
