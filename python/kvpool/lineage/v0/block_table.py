"""The former path of ``kvpool.lineage.v0.block.block_table``, where everything is."""

from kvpool.lineage.v0.block.block_table import *  # noqa: F403
from kvpool.lineage.v0.block.block_table import __all__ as __all__
