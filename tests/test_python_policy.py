"""Tests eviction policies in Python. A correct policy behaves like the same policy in Rust, and a
broken one does no damage to the pool.
"""

from __future__ import annotations

import copy
import doctest
import gc
import itertools
import threading
import warnings
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import kvpool
import kvpool.policies

if TYPE_CHECKING:
    from collections.abc import Callable

HASHER = kvpool.BlockHasher(block_size=1)


class Lru(kvpool.policies.Policy):
    """An LRU policy that defines every method."""

    def __init__(self) -> None:
        self.order: OrderedDict[int, None] = OrderedDict()

    def release(self, block: int) -> None:
        self.order[block] = None
        self.order.move_to_end(block)

    def pop(self) -> int | None:
        return self.order.popitem(last=False)[0] if self.order else None

    def forget(self, block: int) -> None:
        self.order.pop(block, None)

    hit = take = forget

    def unpop(self, block: int) -> None:
        self.order[block] = None
        self.order.move_to_end(block, last=False)

    def clear(self) -> None:
        self.order.clear()


class ShortLru(kvpool.policies.Policy):
    """An LRU policy that defines only the required methods and ``hit``."""

    def __init__(self) -> None:
        self.order: dict[int, None] = {}

    def release(self, block: int) -> None:
        self.order[block] = None

    def pop(self) -> int | None:
        block = next(iter(self.order), None)
        return block if block is None else (self.order.pop(block), block)[1]

    def forget(self, block: int) -> None:
        self.order.pop(block, None)

    hit = forget


class Recorder(Lru):
    """An LRU policy that records the calls of its methods."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[Any, ...]] = []

    def admit(self, block: int, key: int, depth: int) -> None:
        self.told.append(("admit", block, key, depth))

    def evicted(self, block: int, key: int, depth: int) -> None:
        self.told.append(("evicted", block, key, depth))

    def release(self, block: int) -> None:
        self.told.append(("release", block))
        super().release(block)


class Broken(Lru):
    """An LRU policy. One call of one of its methods, the nth, fails in one of several ways."""

    def __init__(self, method: str, nth: int, wrong: Callable[[Broken], Any]) -> None:
        super().__init__()
        self.method, self.left, self.wrong = method, nth, wrong
        self.given: list[int] = []

    def _now(self, method: str) -> bool:
        if method != self.method:
            return False
        self.left -= 1
        return self.left < 0

    def admit(self, block: int, key: int, depth: int) -> None:
        if self._now("admit"):
            self.wrong(self)

    def evicted(self, block: int, key: int, depth: int) -> None:
        if self._now("evicted"):
            self.wrong(self)

    def hit(self, block: int) -> None:
        if self._now("hit"):
            self.wrong(self)
        super().forget(block)

    def release(self, block: int) -> None:
        if self._now("release"):
            self.wrong(self)
        super().release(block)

    def forget(self, block: int) -> None:
        if self._now("forget"):
            self.wrong(self)
        super().forget(block)

    def unpop(self, block: int) -> None:
        if self._now("unpop"):
            self.wrong(self)
        super().unpop(block)

    def clear(self) -> None:
        if self._now("clear"):
            self.wrong(self)
        super().clear()

    def pop(self) -> Any:
        if self._now("pop"):
            return self.wrong(self)
        block = super().pop()
        if block is not None:
            self.given.append(block)
        return block


def fail(_policy: Broken) -> None:
    raise ZeroDivisionError("a bug")


METHODS = ["admit", "hit", "release", "pop", "unpop", "evicted", "forget", "clear"]
ANSWERS: dict[str, Callable[[Broken], Any]] = {
    "an exception": fail,
    "None": lambda _: None,
    # Choose a block that was not released again since it was given. Otherwise giving it again would be
    # valid.
    "a block twice": lambda policy: next(
        (one for one in reversed(policy.given) if one not in policy.order), 0
    ),
    "the null block": lambda _: 0,
    "no such block": lambda _: 10**6,
    "a huge number": lambda _: 10**30,
    "a negative number": lambda _: -1,
    "a bool": lambda _: True,
    "a float": lambda _: 1.0,
    "a string": lambda _: "1",
    "a list": lambda _: [1],
    "itself": lambda policy: policy,
}


class Machine(RuleBasedStateMachine):
    """Stores and releases random prompts on small pools that differ only in their policy. Compares each
    pool with the first one.
    """

    pools: list[kvpool.BlockPool]

    def make(self, usable: int, *policies: Any, retention: bool) -> None:
        self.pools = [
            kvpool.BlockPool(usable + 1, 1, eviction=policy, retention=retention) for policy in policies
        ]
        self.tables: list[list[int]] = []

    def each(self, call: Callable[[kvpool.BlockPool], Any]) -> Any:
        results = [call(pool) for pool in self.pools]
        assert all(result == results[0] for result in results)
        return results[0]

    def place(self, pool: kvpool.BlockPool, chain: list[int]) -> list[int] | None:
        of = HASHER.cursor(chain).chain()
        hits = pool.match_and_acquire(of)
        available = pool.num_available
        try:
            new = pool.allocate(len(chain) - len(hits))
        except kvpool.errors.OutOfBlocksError:
            assert available < len(chain) - len(hits)
            pool.release(hits, tail_first=True)
            return None
        pool.register(new, of, len(hits))
        pool.mark_computed(new)
        return hits + new

    @rule(chain=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def store(self, chain: list[int]) -> None:
        table = self.each(lambda pool: self.place(pool, chain))
        if table is not None:
            self.tables.append(table)

    @rule(nth=st.integers(0, 99))
    def release(self, nth: int) -> None:
        if self.tables:
            table = self.tables.pop(nth % len(self.tables))
            self.each(lambda pool: pool.release(table, tail_first=True))

    @rule(ids=st.lists(st.integers(1, 5), max_size=3))
    def drop(self, ids: list[int]) -> None:
        # Do not drop a block by id if a running request also holds the block after it. Otherwise the
        # dropped block could be cached again and released before its child. Then "lru" would evict it
        # first, because "lru" does not know parents, but a closed order would not.
        parents = {block for table in self.tables for block in table[:-1]}
        ids = [block for block in ids if block < self.pools[0].num_blocks and block not in parents]
        self.each(lambda pool: pool.drop_cached(ids))

    @rule(ids=st.lists(st.integers(1, 5), max_size=3), priority=st.sampled_from([0, 35, 35, 90]))
    def retain(self, ids: list[int], priority: int) -> None:
        ids = [block for block in ids if block < self.pools[0].num_blocks]
        if self.pools[0].retention.stats() is not None:
            self.each(lambda pool: pool.retention.retain(ids, kvpool.Retention(priority)))

    @rule()
    def forget_all(self) -> None:
        if not self.tables:
            self.each(lambda pool: pool.reset())

    @invariant()
    def same(self) -> None:
        for pool in self.pools:
            pool.diagnose.check_invariants()
        self.each(lambda pool: pool.diagnose.eviction_order())


class GoodMachine(Machine):
    @initialize(usable=st.integers(2, 9), retention=st.booleans())
    def start(self, usable: int, retention: bool) -> None:
        self.make(usable, "lru", Lru(), ShortLru(), retention=retention)

    @invariant()
    def healthy(self) -> None:
        for pool in self.pools:
            pool.diagnose.check_policy()


TestGood = GoodMachine.TestCase


class BrokenMachine(Machine):
    """Tests an LRU policy that breaks. Afterwards the pool uses its built-in LRU, so its results do not
    differ from those of "lru".
    """

    @initialize(
        usable=st.integers(2, 9),
        method=st.sampled_from(METHODS),
        nth=st.integers(0, 12),
        answer=st.sampled_from(list(ANSWERS)),
        retention=st.booleans(),
    )
    def start(self, usable: int, method: str, nth: int, answer: str, retention: bool) -> None:
        self.make(
            usable,
            "lru",
            Broken(method, nth, ANSWERS[answer] if method == "pop" else fail),
            retention=retention,
        )

    @rule(chain=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def store(self, chain: list[int]) -> None:
        with warnings.catch_warnings(record=True):
            super().store(chain)

    @rule(nth=st.integers(0, 99))
    def release(self, nth: int) -> None:
        with warnings.catch_warnings(record=True):
            super().release(nth)

    @rule(ids=st.lists(st.integers(1, 5), max_size=3))
    def drop(self, ids: list[int]) -> None:
        with warnings.catch_warnings(record=True):
            super().drop(ids)

    @rule(ids=st.lists(st.integers(1, 5), max_size=3), priority=st.sampled_from([0, 35, 35, 90]))
    def retain(self, ids: list[int], priority: int) -> None:
        with warnings.catch_warnings(record=True):
            super().retain(ids, priority)

    @rule()
    def forget_all(self) -> None:
        with warnings.catch_warnings(record=True):
            super().forget_all()


TestBroken = BrokenMachine.TestCase


def test_a_block_is_given_twice_only_if_it_was_not_cached_again_in_between() -> None:
    """The fourth pop gives a block that was released again since it was given before. That is a valid
    answer of another order.
    """
    machine = BrokenMachine()
    machine.start(usable=5, method="pop", nth=3, answer="a block twice", retention=False)
    for chain in ([0, 0, 0, 0], [1, 0, 0, 0]):
        machine.store(chain=chain)
        machine.same()
        machine.release(nth=0)
        machine.same()
    machine.teardown()


class ArbitraryMachine(Machine):
    """Tests a policy that gives random blocks. Every available block can be allocated, and no block
    with references is given.
    """

    @initialize(usable=st.integers(2, 9), answers=st.lists(st.integers(0, 10), max_size=40))
    def start(self, usable: int, answers: list[int]) -> None:
        given = iter(answers)

        class Arbitrary(ShortLru):
            def pop(self) -> int | None:
                return next(given, None)

            def __deepcopy__(self, memo: dict[int, Any]) -> Arbitrary:
                raise TypeError("an iterator is not to be copied")

        self.make(usable, Arbitrary(), retention=True)

    @rule(chain=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def store(self, chain: list[int]) -> None:
        with warnings.catch_warnings(record=True):
            super().store(chain)

    @rule()
    def forget_all(self) -> None:
        with warnings.catch_warnings(record=True):
            super().forget_all()


TestArbitrary = ArbitraryMachine.TestCase


def fill(pool: kvpool.BlockPool, *prompts: list[int]) -> list[list[int]]:
    """Caches prompts one after another, and releases them."""
    tables = []
    for prompt in prompts:
        chain = HASHER.cursor(prompt).chain()
        table = pool.allocate(len(prompt))
        pool.register(table, chain)
        pool.mark_computed(table)
        pool.release(table, tail_first=True)
        tables.append(table)
    return tables


def test_the_example_of_the_module_runs() -> None:
    assert doctest.testmod(kvpool.policies).failed == 0


def test_a_policy_is_notified_of_contents() -> None:
    policy = Recorder()
    pool = kvpool.BlockPool(4, 1, eviction=policy)
    [[first, second]] = fill(pool, [7, 8])
    digest = pool.diagnose.hash_of(first)
    assert digest is not None
    told = policy.told
    assert told[0] == ("admit", first, int.from_bytes(digest[:8], "little"), 0)
    assert [event[:2] for event in told] == [
        ("admit", first),
        ("admit", second),
        ("release", second),
        ("release", first),
    ]
    fill(pool, [1, 2, 3])
    evicted = [event for event in policy.told if event[0] == "evicted"]
    assert [event[1:] for event in evicted] == [event[1:] for event in reversed(told[:2])]


def test_a_manager_takes_one_too() -> None:
    manager = kvpool.CacheManager(8, 2, eviction=Lru(), retention=True, host_blocks=4)
    plain = kvpool.CacheManager(8, 2, retention=True, host_blocks=4)
    for one in (manager, plain):
        for name in range(6):
            one.admit(name, [name, 2, 3, 4, 5], no_cache=name == 4)
            one.commit(name, 5)
            one.release(name)
        swap = (one.admit("s", [1, 2, 3]), one.commit("s", 3), one.swaps.begin_out(["s"]))[2]
        one.take_plan()
        one.swaps.complete(swap)
        one.diagnose.check_invariants()
    assert manager.diagnose.eviction_order() == plain.diagnose.eviction_order()
    assert manager.stats() == plain.stats()
    manager.diagnose.check_policy()


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_wrong_answer_is_warned_of_kept_and_raised(answer: str) -> None:
    policy = Broken("pop", 0, ANSWERS[answer])
    pool = kvpool.BlockPool(5, 1, eviction=policy)
    tables = fill(pool, [1, 2], [3, 4])
    pool.diagnose.check_policy()
    with pytest.warns(RuntimeWarning, match=r"LRU instead: pop\(\) gave") as caught:
        assert pool.allocate(3) == [tables[0][1], tables[0][0], tables[1][1]]
    assert len(caught) == 1
    assert caught[0].filename == __file__
    for _ in range(2):
        with pytest.raises(kvpool.errors.PolicyError, match=r"pop\(\)") as raised:
            pool.diagnose.check_policy()
        cause = raised.value.__cause__
        assert isinstance(cause, ZeroDivisionError if answer == "an exception" else ValueError)
    pool.diagnose.check_invariants()


@pytest.mark.parametrize("method", METHODS)
def test_an_exception_in_any_method(method: str) -> None:
    pool = kvpool.BlockPool(5, 1, eviction=Broken(method, 0, fail))
    with pytest.warns(RuntimeWarning, match=rf"{method}\(\) gave ZeroDivisionError: a bug"):  # noqa: PT031
        first, _ = fill(pool, [1, 2], [3])
        held = pool.match_and_acquire(HASHER.cursor([1, 2, 9]).chain())
        # The first block is released before the block after it, so it would be evicted first. It has to
        # wait until that block is evicted. Then the pool returns it to the policy (``unpop``).
        pool.release(held[:1])
        pool.release(held[1:])
        pool.allocate(3)
        pool.drop_cached(first)
        pool.bump_epoch()
    with pytest.raises(kvpool.errors.PolicyError, match=method):
        pool.diagnose.check_policy()
    pool.diagnose.check_invariants()


def test_a_warning_that_is_an_error_does_not_cost_the_allocation() -> None:
    pool = kvpool.BlockPool(3, 1, eviction=Broken("pop", 0, fail))
    fill(pool, [1], [2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(pool.allocate(2)) == 2
    with pytest.raises(kvpool.errors.PolicyError):
        pool.diagnose.check_policy()


EXITS = [KeyboardInterrupt, SystemExit]


# The test leaves out ``unpop``, the method by which the pool returns a block to the policy. Its calls
# cause no ``unpop``.
@pytest.mark.parametrize("method", [method for method in METHODS if method != "unpop"])
@pytest.mark.parametrize("exit_", EXITS)
def test_an_interrupt_in_a_policy_reaches_the_caller(exit_: type[BaseException], method: str) -> None:
    """The interrupt is raised by the call that called the policy, with any warning filters and in any
    thread. The pool remains valid.
    """

    def interrupt(_policy: Broken) -> None:
        raise exit_("now")

    def calls(manager: kvpool.CacheManager) -> None:
        for name, prompt in (("a", [1, 2]), ("b", [3, 4]), ("c", [1, 2, 5])):
            manager.admit(name, prompt)
            manager.commit(name, len(prompt))
        for name in ("c", "a", "b"):
            manager.release(name)
        manager.admit("d", range(6, 15))  # this evicts
        manager.commit("d", 9)
        manager.drop_cached(manager.block_ids("d")[:1])
        manager.release("d")
        manager.bump_epoch()

    def raised() -> BaseException | None:
        manager = kvpool.CacheManager(11, 1, eviction=Broken(method, 0, interrupt))
        # Do not change warning filters here. They belong to the whole process, and this function also
        # runs in a second thread.
        with pytest.raises(exit_, match="now") as caught:
            calls(manager)
        manager.diagnose.check_invariants()
        with pytest.raises(kvpool.errors.PolicyError, match=method) as why:
            manager.diagnose.check_policy()
        assert isinstance(why.value.__cause__, exit_)
        # Later calls succeed, because the pool has replaced the broken policy by its built-in LRU order.
        for name in ("a", "b", "c", "d"):
            if name in manager:
                manager.release(name)
        calls(manager)
        manager.diagnose.check_invariants()
        return caught.value

    for action in ("error", "ignore"):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            assert raised() is not None
            with ThreadPoolExecutor(1) as executor:
                assert executor.submit(raised).result() is not None


def test_an_interrupt_while_a_warning_is_shown_reaches_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def show(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    pool = kvpool.BlockPool(3, 1, eviction=Broken("pop", 0, fail))
    fill(pool, [1], [2])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        with pytest.raises(KeyboardInterrupt):
            pool.allocate(1)
    pool.diagnose.check_invariants()
    with pytest.raises(kvpool.errors.PolicyError, match="ZeroDivisionError"):
        pool.diagnose.check_policy()


@pytest.mark.parametrize("where", ["deepcopy", "pop"])
def test_an_interrupt_in_a_policys_copy_reaches_the_caller(where: str) -> None:
    class Copied(Lru):
        def __deepcopy__(self, memo: dict[int, Any]) -> Lru:
            if where == "deepcopy":
                raise KeyboardInterrupt
            return Interrupted()

    class Interrupted(Lru):
        def pop(self) -> int | None:
            raise KeyboardInterrupt

    pool = kvpool.BlockPool(3, 1, eviction=Copied())
    fill(pool, [1], [2])
    with pytest.raises(KeyboardInterrupt):
        pool.diagnose.eviction_order()
    pool.diagnose.check_policy()
    assert pool.allocate(1) == [1]


class Reentrant(Lru):
    """A policy that makes another call, for example of its pool, whenever it is asked for a victim."""

    def __init__(self) -> None:
        super().__init__()
        self.call: Callable[[], Any] = lambda: None
        self.errors: list[BaseException] = []

    def pop(self) -> int | None:
        try:
            self.call()
        except kvpool.KvpoolError as error:
            self.errors.append(error)
        return super().pop()


CALLS: dict[str, Callable[[kvpool.BlockPool], Any]] = {
    "stats": lambda pool: pool.stats(),
    "allocate": lambda pool: pool.allocate(1),
    "eviction_order": lambda pool: pool.diagnose.eviction_order(),
    "bump_epoch": lambda pool: pool.bump_epoch(),
    "check_invariants": lambda pool: pool.diagnose.check_invariants(),
    "complete_step": lambda pool: pool.complete_step(1),
    "repr": repr,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_policy_that_calls_its_pool_is_refused(call: str) -> None:
    policy = Reentrant()
    pool = kvpool.BlockPool(3, 1, eviction=policy)
    fill(pool, [1], [2])
    policy.call = lambda: CALLS[call](pool)
    assert len(pool.allocate(1)) == 1
    assert [type(error) for error in policy.errors] == [kvpool.errors.PolicyError]
    assert "busy" in str(policy.errors[0])
    pool.diagnose.check_policy()  # the policy caught the error, so it still works
    pool.diagnose.check_invariants()


class Haunted(Lru):
    """A policy that calls its pool when it is copied, and when the copy is destroyed."""

    def __init__(self) -> None:
        super().__init__()
        self.ask: Callable[[], Any] = lambda: None
        self.heard: list[str] = []

    def asks(self, when: str) -> None:
        try:
            self.ask()
        except kvpool.errors.PolicyError:
            when += " refused"
        self.heard.append(when)

    def __deepcopy__(self, memo: dict[int, Any]) -> Haunted:
        self.asks("copied")
        ghost = Haunted()
        ghost.order, ghost.ask, ghost.heard = copy.copy(self.order), self.ask, self.heard
        return ghost

    def __del__(self) -> None:
        self.asks("dropped")


@pytest.mark.parametrize("call", CALLS)
def test_a_copy_that_asks_its_pool_as_it_goes_is_refused(call: str) -> None:
    """The copy is destroyed while the pool is locked. In an earlier version, its call of the pool
    waited forever.
    """
    policy = Haunted()
    pool = kvpool.BlockPool(3, 1, eviction=policy)
    fill(pool, [1], [2])
    policy.ask = lambda: CALLS[call](pool)
    assert pool.diagnose.eviction_order() == [1, 2]
    assert policy.heard == ["copied refused", "dropped refused"]
    pool.diagnose.check_policy()
    pool.diagnose.check_invariants()
    policy.ask = lambda: None  # otherwise the pool and its policy would refer to each other forever


def test_what_a_collection_drops_while_a_policy_is_asked_is_refused() -> None:
    """While a policy runs, the garbage collector may destroy any object that is in a cycle. Such an
    object must not use the pool.
    """
    heard: list[str] = []

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            with pytest.raises(kvpool.errors.PolicyError):
                pool.stats()
            heard.append("refused")

    class Collects(Lru):
        def pop(self) -> int | None:
            Cycle()
            gc.collect()
            return super().pop()

    pool = kvpool.BlockPool(3, 1, eviction=Collects())
    fill(pool, [1], [2])
    assert pool.allocate(1) == [1]
    assert heard == ["refused"]
    pool.diagnose.check_policy()


def test_a_policy_that_failed_asks_as_it_goes() -> None:
    """Objects that belong to a failed policy may be destroyed in the call in which it failed, or in a
    later call that fails.
    """
    heard: list[str] = []

    class Guest:
        def __del__(self) -> None:
            with pytest.raises(kvpool.errors.PolicyError):
                pool.stats()
            heard.append("refused")

    class Fails(Lru):
        def __deepcopy__(self, memo: dict[int, Any]) -> Lru:
            return Fails()

        def pop(self) -> int | None:
            guest = Guest()
            raise ValueError(f"{type(guest)} of its own")

    pool = kvpool.BlockPool(3, 1, eviction=Fails())
    fill(pool, [1], [2])
    assert pool.diagnose.eviction_order() == [1, 2]
    assert heard == ["refused"]  # the traceback of a copy's failure is freed while the lock is held
    pool.diagnose.check_policy()


def test_a_policy_that_lets_the_refusal_through_is_ended_by_it() -> None:
    policy = Reentrant()
    manager = kvpool.CacheManager(4, 1, eviction=policy)
    manager.admit("a", [1, 2, 3])
    manager.commit("a", 3)
    step: list[Any] = []

    def call() -> None:
        for one in (manager.stats, lambda: len(manager), manager.plan_step, lambda: step[0].admit("c", [5])):
            with pytest.raises(kvpool.errors.PolicyError):
                one()
        raise kvpool.errors.PolicyError("of its own")

    policy.call = call
    policy.errors = None  # type: ignore[assignment]
    manager.release("a")
    step.append(manager.plan_step())
    with pytest.warns(RuntimeWarning, match="AttributeError"):
        manager.admit("b", [7])
    with pytest.raises(kvpool.errors.PolicyError):
        manager.diagnose.check_policy()
    with pytest.raises(kvpool.errors.StaleStepError):
        step[0].admit("c", [5])
    manager.diagnose.check_invariants()


def test_a_policy_may_use_another_pool() -> None:
    policy, other = Reentrant(), kvpool.BlockPool(9, eviction=Lru())
    pool = kvpool.BlockPool(3, 1, eviction=policy)
    fill(pool, [1], [2])
    policy.call = lambda: other.allocate(1)
    pool.allocate(2)
    assert policy.errors == []
    assert other.stats().active == 2


def test_threads_take_turns() -> None:
    """Several threads allocate, hit and read at once. No thread waits forever, and the policy never
    runs in two threads at once.
    """
    busy = threading.Lock()

    class Exclusive(Lru):
        def pop(self) -> int | None:
            assert busy.acquire(blocking=False), "two threads in one policy"
            try:
                list(range(50))  # other threads run here
                return super().pop()
            finally:
                busy.release()

        def __deepcopy__(self, memo: dict[int, Any]) -> Lru:
            clone = Lru()
            clone.order = copy.copy(self.order)
            return clone

    manager = kvpool.CacheManager(40, 2, eviction=Exclusive(), retention=True)
    names = itertools.count()

    def serve(worker: int) -> None:
        for number in range(60):
            name = next(names)
            manager.admit(name, [worker, number % 7, 1, 2, 3, 4, 5])
            manager.commit(name, 7)
            manager.release(name)
            assert len(manager.diagnose.eviction_order()) <= 39
            assert manager.stats().running <= 4

    with ThreadPoolExecutor(4) as executor:
        for done in [executor.submit(serve, worker) for worker in range(4)]:
            done.result()
    manager.diagnose.check_policy()
    manager.diagnose.check_invariants()


def test_the_order_of_a_policy_that_cannot_be_copied_is_that_of_the_net() -> None:
    class MostRecent(ShortLru):
        def pop(self) -> int | None:
            return self.order.popitem()[0]

    class Fixed(MostRecent):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    for policy, order in ((MostRecent(), [2, 1]), (Fixed(), [1, 2])):
        pool = kvpool.BlockPool(3, 1, eviction=policy)
        fill(pool, [1], [2])
        assert pool.diagnose.eviction_order() == order
        assert pool.allocate(1) == [2]
        pool.diagnose.check_policy()


def test_a_look_at_the_order_changes_nothing() -> None:
    policy = Broken("pop", 1, fail)
    pool = kvpool.BlockPool(4, 1, eviction=policy)
    fill(pool, [1], [2], [3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pool.diagnose.eviction_order() == [1, 2, 3]  # the copy fails, without an effect
        assert pool.allocate(1) == [1]
    pool.diagnose.check_policy()


def test_any_object_with_the_methods_will_do() -> None:
    class Duck:
        def __init__(self) -> None:
            self.order: list[int] = []
            self.release = self.order.append

        def pop(self) -> int:
            return self.order.pop()

        def forget(self, block: int) -> None:
            self.order.remove(block)

    pool = kvpool.BlockPool(3, 1, eviction=Duck())  # type: ignore[arg-type]
    fill(pool, [1], [2])
    assert pool.allocate(2) == [2, 1]
    pool.diagnose.check_policy()


def test_what_is_no_policy_is_refused() -> None:
    class Half:
        def release(self, block: int) -> None: ...

    for wrong, word in ((Half(), "pop"), (3, "int"), (object(), "object"), (Lru, "type")):
        for make in (kvpool.BlockPool, kvpool.CacheManager):
            if wrong is Lru:
                continue
            with pytest.raises(TypeError, match=f"eviction is a .*{word}"):
                make(8, eviction=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="abstract"):
        kvpool.policies.Policy()  # type: ignore[abstract]
    with pytest.raises(ValueError, match="num_blocks"):
        kvpool.BlockPool(1, eviction=Lru())
    with pytest.raises(ValueError, match="pin_budget"):
        kvpool.BlockPool(8, eviction=Lru(), retention=kvpool.RetentionConfig(pin_budget=8))


def test_a_pool_with_a_policy_grows() -> None:
    pool = kvpool.BlockPool(3, 1, eviction=Lru())
    fill(pool, [1], [2])
    pool.resize(6)
    fill(pool, [3, 4, 5])
    assert pool.diagnose.eviction_order() == [1, 2, 5, 4, 3]
    pool.diagnose.check_policy()


def test_a_pool_lets_go_of_its_policy() -> None:
    policy = Lru()
    gone = weakref.ref(policy)
    pool = kvpool.BlockPool(3, 1, eviction=policy)
    del policy
    gc.collect()
    assert gone() is not None
    del pool
    gc.collect()
    assert gone() is None


def test_a_builtin_policy_is_always_well() -> None:
    kvpool.BlockPool(3).diagnose.check_policy()
    kvpool.CacheManager(3).diagnose.check_policy()
