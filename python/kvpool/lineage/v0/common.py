"""Former path of ``kvpool.lineage.v0.block.common``. It still exports the names of that module."""

from kvpool.lineage.v0.block.common import *  # noqa: F403
from kvpool.lineage.v0.block.common import __all__ as __all__
