"""Former path of ``kvpool.lineage.v0.block.naive_block``. It still exports the names of that module."""

from kvpool.lineage.v0.block.naive_block import *  # noqa: F403
from kvpool.lineage.v0.block.naive_block import __all__ as __all__
