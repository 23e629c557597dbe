"""The former path of ``kvpool.lineage.v0.block.cpu_gpu_block_allocator``, where everything is."""

from kvpool.lineage.v0.block.cpu_gpu_block_allocator import *  # noqa: F403
from kvpool.lineage.v0.block.cpu_gpu_block_allocator import __all__ as __all__
