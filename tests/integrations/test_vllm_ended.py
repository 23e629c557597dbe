"""Tests that the pool notifies its policy of the reason for which a vLLM request has ended."""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.integrations.fake_vllm import fake_vllm, freeing, part
from tests.integrations.pool_stand_ins import BLOCK, digest, make_pool, request_of
from tests.made_up_sessions import returning_sessions

if TYPE_CHECKING:
    from collections.abc import Iterator


class FinishReason(enum.IntEnum):
    """Stands in for vLLM's enum of reasons. Its members are numbers, and their text is the word in
    vLLM's API.
    """

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4

    def __str__(self) -> str:
        return self.name.lower()


@pytest.fixture(autouse=True)
def vllm() -> Iterator[Any]:
    with fake_vllm() as package:
        yield package
        part("pool").BlockPool.hinting = None


class Core:
    """Stands in for the pool's core. It records each call that reports the end of a request."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.said: list[tuple[list[int], str | None, int | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    def signal(self, block_ids: list[int], finish_reason: str | None, output_tokens: int | None) -> None:
        self.said.append((list(block_ids), finish_reason, output_tokens))
        self.core.signal(block_ids, finish_reason, output_tokens)


class Manager:
    """Stands in for vLLM's KV-cache manager. It has the attributes that kvpool reads, the tables of one
    group, and the method that frees a request.
    """

    def __init__(self, eviction: str = "hazard", num_blocks: int = 16, **more: Any) -> None:
        self.block_pool = make_pool(num_blocks, events=None, eviction=eviction, **more)
        self.block_pool.core = Core(self.block_pool.core)
        self.tables: dict[str, list[Any]] = {}
        group = SimpleNamespace(req_to_blocks=self.tables, block_size=BLOCK[0])
        self.coordinator = SimpleNamespace(single_type_managers=(group,))

    @property
    def said(self) -> list[tuple[list[int], str | None, int | None]]:
        core: Core = self.block_pool.core
        return core.said

    def run(self, tokens: list[int], name: str, reason: FinishReason | None, answered: int = 0) -> int:
        """Runs a request: it hits cached blocks, computes the others, and frees all. Returns the number
        of hits.
        """
        pool, size = self.block_pool, BLOCK[0]
        request = request_of(tokens)
        request.num_prompt_tokens = len(tokens)
        vars(request).update(
            request_id=name,
            is_finished=lambda: reason is not None,
            get_finished_reason=lambda: reason,
            num_output_tokens=answered,
        )
        hits = []
        for end in range(size, len(tokens) + 1, size):
            found = pool.get_cached_block(digest(tuple(tokens[:end])), [0])
            if found is None:
                break
            hits += found
        pool.touch(hits)
        count = len(tokens) // size
        table = hits + pool.get_new_blocks(count - len(hits))
        pool.cache_full_blocks(request, table, len(hits), count, size, 0)
        self.tables[name] = table
        self.free(request)
        return len(hits)

    def free(self, request: Any) -> None:
        part("hints").before_free(self, request)
        self.block_pool.free_blocks(reversed(self.tables.pop(request.request_id)))


@pytest.mark.parametrize("reason", list(FinishReason))
def test_an_end_is_said_of_a_requests_blocks_in_words(reason: FinishReason) -> None:
    manager = Manager()
    manager.run([1, 2, 3, 4], "a", reason, 7)
    ((blocks, said, tokens),) = manager.said
    assert (len(blocks), said, tokens) == (4 // BLOCK[0], str(reason), 7)


def test_a_preempted_request_gives_no_end() -> None:
    manager = Manager()
    manager.run([1, 2], "a", None)
    assert manager.said == []
    manager.run([1, 2], "a", FinishReason.ABORT)
    assert [said for _, said, _ in manager.said] == ["abort"]


@pytest.mark.parametrize("eviction", ["lru", "arc", "s3-fifo", "adaptive"])
def test_a_policy_without_signals_gets_no_ends(eviction: str) -> None:
    manager = Manager(eviction)
    assert not manager.block_pool.wants_signals
    manager.run([1, 2], "a", FinishReason.STOP)
    assert manager.said == []


def test_a_pool_of_other_memory_or_without_a_cache_gets_no_ends() -> None:
    assert Manager().block_pool.wants_signals
    assert not Manager(medium="CPU").block_pool.wants_signals
    assert not Manager(caching=False).block_pool.wants_signals


def test_hints_and_ends_are_passed_together() -> None:
    hints = part("hints")
    part("pool").BlockPool.hinting = hints.VllmHints.parse('{"priority": true}')
    manager = Manager()
    manager.run([1, 2], "a", FinishReason.LENGTH, 3)
    assert [said for _, said, _ in manager.said] == ["length"]


def hits_of_sessions(*, told: bool) -> int:
    """Returns the number of hits in a small pool. Sessions whose requests end with "stop" return once,
    and sessions that reach their length limit never return.
    """
    manager = Manager(num_blocks=161)
    hits = 0
    for turn, session, comes_back in returning_sessions():
        reason = FinishReason.STOP if comes_back else FinishReason.LENGTH
        tokens = [session] * (4 * BLOCK[0])
        hits += manager.run(tokens, str(turn), reason if told else None)
    return hits


def test_ends_keep_returning_sessions_cached() -> None:
    # The policy keeps the sessions that return if it is notified of how requests end. Otherwise it
    # keeps some blocks of every session.
    assert hits_of_sessions(told=True) > 1.3 * hits_of_sessions(told=False)


def test_at_the_level_pool_vllms_manager_says_it() -> None:
    whole = {"is_finished": bool, "get_finished_reason": bool, "num_output_tokens": 0}
    with freeing(Manager, SimpleNamespace(**whole)) as kv_cache_manager:
        part("ended").check()
        for owner, name, value in part("hints").replacements("the eviction hazard asks how requests end"):
            setattr(owner, name, value)
        manager = kv_cache_manager()
        manager.run([1, 2], "a", FinishReason.STOP, 1)
        # vLLM has freed the request in both of its ways, and each call has reported the reason. The second
        # call changed nothing in the pool.
        assert manager.said == 2 * [([1], "stop", 1)]
        for name in whole:
            less = SimpleNamespace(**{other: whole[other] for other in whole if other != name})
            with freeing(Manager, less), pytest.raises(RuntimeError, match=f"Request has no {name}"):
                part("ended").check()
        setattr(kv_cache_manager, "free", lambda self, request, more: None)  # noqa: B010 - vLLM's, changed
        with pytest.raises(
            RuntimeError, match=r"the eviction hazard asks how requests end, and KVCacheManager\.free"
        ):
            part("hints").replacements("the eviction hazard asks how requests end")


def test_only_policies_that_listen_change_where_requests_leave() -> None:
    ended = part("ended")
    heard = [name for name in part("settings").EVICTIONS if ended.wants_signals(name)]
    assert heard == ["hazard"]
