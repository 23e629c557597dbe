"""The former path of ``kvpool.lineage.v0.block.naive_block``, where everything is."""

from kvpool.lineage.v0.block.naive_block import *  # noqa: F403
from kvpool.lineage.v0.block.naive_block import __all__ as __all__
