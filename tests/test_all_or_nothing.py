"""A batch that is refused changes nothing. If two of its rows write to a shared block, the block is
copied once. `operations/all_or_nothing.rs` has more tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import kvpool
from kvpool import errors
from kvpool.testing import observe_manager

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_batch_whose_last_row_is_refused_has_done_nothing() -> None:
    """The refusal of the last row leaves the rows before it unchanged: their tokens, blocks, copies and
    computed tokens.
    """
    manager = kvpool.CacheManager(8, 2)
    manager.admit("a", [1, 2, 3])
    manager.fork("a", "b")
    manager.admit("c", [7, 7, 7])
    names = ["a", "b", "c"]
    before = observe_manager(manager, names)
    step = manager.plan_step()
    late: list[tuple[Callable[[], object], type[kvpool.KvpoolError]]] = [
        (lambda: manager.append_ragged([*names, "d"], [5] * 4, commit=True), errors.UnknownRequestError),
        (lambda: manager.append_ragged([*names, "a"], [5] * 4, commit=True), errors.DuplicateRequestError),
        (lambda: manager.append_ragged(names, [5] * 3, computed=[3, 3, 5]), errors.InvalidArgumentError),
        (lambda: manager.append_ragged(names, [5] * 3, commit=True, lookahead=6), errors.OutOfBlocksError),
        (lambda: manager.truncate(names, [1, 1, 4]), errors.InvalidArgumentError),
        (lambda: manager.truncate([*names, "a"], [1] * 4), errors.DuplicateRequestError),
        (lambda: manager.release([*names, "d"]), errors.UnknownRequestError),
        (lambda: manager.release([*names, "a"]), errors.DuplicateRequestError),
        (lambda: manager.fork([*names, "d"], [1, 2, 3, 4]), errors.UnknownRequestError),
        (lambda: manager.fork(names, [1, 2, "c"]), errors.DuplicateRequestError),
        (lambda: manager.fork(names, [1, 2, 1]), errors.DuplicateRequestError),
        (lambda: step.append_ragged([*names, "d"], [5] * 4), errors.UnknownRequestError),
        (lambda: step.append_ragged(names, [5] * 3, lookahead=6), errors.OutOfBlocksError),
    ]
    for call, error in late:
        with pytest.raises(error):
            call()
        assert observe_manager(manager, names) == before
        assert (len(step), step.available_blocks) == (0, 3)
    assert manager.append_ragged(names, [5] * 3, commit=True) == ([0], [1], [5])
    assert len(manager.take_plan().transfers) == 1
    manager.diagnose.check_invariants()


def test_a_step_whose_rows_share_a_registered_block_copies_it_once_without_blocks_for_more() -> None:
    manager = kvpool.CacheManager(5, 4)
    manager.admit("a", range(8))
    manager.commit("a", 8)
    manager.truncate("a", 6)
    manager.fork("a", "b")
    manager.admit("c", range(100, 104))
    assert manager.num_available == 1
    # Two requests write to a block that they share. One request gets a copy. The other writes to the original
    # block, whose content is therefore no longer cached.
    assert manager.append(["a", "b"], [1, 2]) == [(0, 1, 4)]
    assert (manager.block_ids("a"), manager.block_ids("b")) == ([1, 4], [1, 2])
    assert manager.fit(range(9)).cached_tokens == 4
    manager.take_plan()
    manager.diagnose.check_invariants()
