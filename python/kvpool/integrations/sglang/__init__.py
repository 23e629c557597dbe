"""kvpool's store beneath SGLang's hierarchical cache.

SGLang's own configuration selects it, and nothing is patched.

SGLang keeps KV that was evicted from the GPU in pages of host memory (HiCache). Pages that are evicted
from host memory go to a *storage back end*. The module ``hicache`` provides one over kvpool's store.
Its content is limited in size, verified, and survives restarts. Select it with
``--hicache-storage-backend dynamic``; ``docs/sglang.md`` contains the whole command line.

A *host pool* is SGLang's memory for pages of one kind, such as KV or recurrent states. ``hicache`` is
the only module that imports SGLang at import time. ``engine`` reads SGLang's configuration, ``resets``
detects its resets, and ``speeds`` reports its metrics. The other modules use objects of SGLang only
through their attributes. ``pages`` copies pages of a host pool, ``shelf`` is the store of one pool, and
``pools`` opens the stores of all pools. ``hits`` computes which prefixes can be restored, and
``namespace`` computes the name under which pages are stored. ``unrelated`` lists the settings that are
not part of that name, and ``settings`` checks the configuration of the back end.
"""

from __future__ import annotations

__all__: list[str] = []


def __dir__() -> list[str]:
    return [*__all__]
