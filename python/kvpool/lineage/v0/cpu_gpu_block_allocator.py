"""Former path of ``kvpool.lineage.v0.block.cpu_gpu_block_allocator``. It still exports the names."""

from kvpool.lineage.v0.block.cpu_gpu_block_allocator import *  # noqa: F403
from kvpool.lineage.v0.block.cpu_gpu_block_allocator import __all__ as __all__
