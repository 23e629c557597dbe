"""Copies the bytes of blocks between tensors of a model's layers, or between device and host memory.

The core only plans which blocks are copied where. A :class:`TransferEngine` copies blocks between two
:class:`BlockStore` objects. A :class:`PlanExecutor` executes all plans of a manager, swaps included.
One binary works with every version of torch, CUDA and Python, because it loads the CUDA driver at run
time. Without a driver, the same calls run on the CPU.

CUDA and CPU have the same semantics. Block ids are checked before any copy is enqueued. One call never
writes a block twice, and never reads a block that it writes. Stores remain alive until the last copy
has finished. ``kvpool.transfer.ops`` offers the same operations as torch ops.

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
    return [*__all__]
