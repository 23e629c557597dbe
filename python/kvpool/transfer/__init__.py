"""Moves the bytes of blocks between layers' tensors, or between device and host, by CUDA or by the CPU.

The core plans which blocks are copied where. A :class:`TransferEngine` copies them between two
:class:`BlockStore` objects. A :class:`PlanExecutor` does so for a whole manager, swaps included. One
binary works with every version of torch, CUDA and Python: it finds the driver at run time. Without a
driver, the same calls run on the CPU.

Semantics are the same on CUDA and CPU. Ids are checked before anything is enqueued. No block is written
twice, or both read and written, by one call. Stores stay alive until the last copy has ended.
``kvpool.transfer.ops`` has the same operations as torch ops.

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
