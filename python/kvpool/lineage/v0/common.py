"""The former path of ``kvpool.lineage.v0.block.common``, where everything is."""

from kvpool.lineage.v0.block.common import *  # noqa: F403
from kvpool.lineage.v0.block.common import __all__ as __all__
