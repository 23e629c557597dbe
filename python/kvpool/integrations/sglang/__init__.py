"""kvpool beneath SGLang's hierarchical cache, through SGLang's own configuration. Nothing is patched.

SGLang keeps KV that was evicted from the GPU in pages of host memory (HiCache). For pages evicted from
host memory, it calls a *storage back end*. ``hicache`` has one over kvpool's store: bounded, checked,
still there after a restart. It is selected by ``--hicache-storage-backend dynamic``; ``docs/sglang.md``
has the whole command line.

``hicache`` is the only module that imports SGLang at import time. ``engine`` reads SGLang's
configuration, ``resets`` watches its resets, and ``speeds`` makes its metrics. The other modules use
SGLang's classes only by their attributes: ``pages`` moves pages of a host pool, ``shelf`` is the store
of one pool, ``pools`` opens the stores of all pools, ``hits`` finds the lengths that can be restored,
``namespace`` names pages, ``unrelated`` lists settings that are not part of the name, and ``settings``
checks the configuration of the back end.
"""

from __future__ import annotations

__all__: list[str] = []


def __dir__() -> list[str]:
    """Lists the public names."""
    return [*__all__]
