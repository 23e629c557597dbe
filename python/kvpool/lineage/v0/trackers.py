"""The former path of the trackers, which are now in ``kvpool.lineage.v0.block.prefix_caching_block``."""

from kvpool.lineage.v0.block._trackers import *  # noqa: F403
from kvpool.lineage.v0.block._trackers import __all__ as __all__
