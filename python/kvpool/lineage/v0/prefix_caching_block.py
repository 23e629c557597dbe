"""Former path of ``kvpool.lineage.v0.block.prefix_caching_block``. It still exports the names."""

from kvpool.lineage.v0.block.prefix_caching_block import *  # noqa: F403
from kvpool.lineage.v0.block.prefix_caching_block import __all__ as __all__
