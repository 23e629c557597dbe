"""Former path of ``kvpool.lineage.v0.block.block_table``. It still exports the names of that module."""

from kvpool.lineage.v0.block.block_table import *  # noqa: F403
from kvpool.lineage.v0.block.block_table import __all__ as __all__
