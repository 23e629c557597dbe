"""kvpool beneath SGLang's hierarchical cache, by SGLang's own configuration: no patch, nothing replaced.

SGLang keeps KV that left the GPU in pages of host memory (HiCache), and asks a *storage back end* for what left that,
too. ``hicache`` has one over kvpool's store: bounded, checked, there after a restart. It is chosen by
``--hicache-storage-backend dynamic``; ``docs/sglang.md`` has the whole command line.

``hicache`` is the only module that imports SGLang. The others know its classes by what they have: ``pages`` how pages
lie in a host pool, ``shelf`` the store of one pool, ``hits`` which lengths can be restored, ``namespace`` whose bytes
they are, ``settings`` what a configuration says.
"""

from __future__ import annotations

__all__: list[str] = []
