"""Moves the bytes of blocks: between layers' tensors, between device and host, by CUDA or by the processor.

The core plans which block's bytes go where; a :class:`TransferEngine` moves them between two
:class:`BlockStore` objects, and a :class:`PlanExecutor` does so for a whole manager, swaps included.
One binary serves every torch, CUDA and Python: the driver is found at run time, and where there is
none, the same calls run on the processor.

Semantics do not depend on the way that the bytes take: ids are checked before anything is enqueued, no
block is written twice or read and written by one call, stores live until the last copy has ended.
``kvpool.transfer.ops`` has the same as torch ops.

>>> import torch
>>> layers = [torch.zeros(2, 8, 16, 4, 64) for _ in range(3)]  # K and V, blocks, tokens, heads, elements
>>> layers[1][:, 5] = 1.0
>>> device = BlockStore.from_tensors(layers, block_dim=1)
>>> host = BlockStore.host(32, like=device)
>>> with TransferEngine() as engine:
...     out = engine.submit(device, host, [(5, 20)])
...     out.wait()
...     engine.copy(host, device, [(20, 6)])  # in the order of the stream; on the CPU it is done now
>>> bool(layers[1][:, 6].eq(1.0).all())
True
"""

from __future__ import annotations

from kvpool._core.transfer import BlockStore, Transfer, TransferEngine, cuda_driver_version
from kvpool.transfer.executor import FinishedSwap, PlanExecutor

__all__ = ["BlockStore", "FinishedSwap", "PlanExecutor", "Transfer", "TransferEngine", "cuda_driver_version"]


def __dir__() -> list[str]:
    """Lists the public names."""
    return [*__all__]
