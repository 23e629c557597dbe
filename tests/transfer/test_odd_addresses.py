"""Tests memory whose address is not aligned, because the memory of a torch tensor may start at any
address.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvpool.transfer import BlockStore, TransferEngine


def shifted(numbers: list[list[int]], dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor whose memory starts one byte after an aligned address."""
    whole = torch.tensor(numbers, dtype=dtype)
    memory = bytearray(1) + bytearray(whole.numpy().tobytes())
    odd = torch.frombuffer(memory, dtype=dtype, offset=1).reshape(whole.shape)
    assert odd.data_ptr() % dtype.itemsize
    return odd


@pytest.mark.parametrize("step", [1, 2])
def test_a_mapping_at_an_odd_address_is_read(step: int) -> None:
    rows = [[0, 3], [1, 2]] if step == 1 else [[0, 9, 3, 9], [1, 9, 2, 9]]
    mapping = shifted(rows, torch.int64)[:, ::step]
    blocks = torch.arange(8, dtype=torch.uint8).reshape(4, 2)
    store = BlockStore.from_tensors([blocks])
    with TransferEngine(threads=1) as engine:
        engine.submit(store, store, mapping).wait()
    assert blocks.tolist() == [[0, 1], [2, 3], [2, 3], [0, 1]]


def test_blocks_at_odd_addresses_are_copied() -> None:
    blocks = shifted([[1, 2], [3, 4], [5, 6]], torch.int64)
    store = BlockStore.from_tensors([blocks])
    with TransferEngine(threads=1) as engine:
        engine.submit(store, store, np.array([[0, 2]])).wait()
    assert blocks.tolist() == [[1, 2], [3, 4], [1, 2]]
