"""What the tests of both models of the example engine share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from examples.paged_engine.engine import Engine


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models are slower with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_all_blocks_are_back(engine: Engine) -> None:
    engine.manager.check_invariants()
    host = engine.manager.host_stats()
    assert len(engine.manager) == 0
    assert engine.manager.stats().pool.active == 0
    assert host is None or host.active == 0
