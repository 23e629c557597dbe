"""The former path of ``kvpool.lineage.v0.block.prefix_caching_block``, where everything is."""

from kvpool.lineage.v0.block._trackers import *  # noqa: F403
from kvpool.lineage.v0.block._trackers import __all__ as __all__
