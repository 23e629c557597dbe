"""Tests that are exported from journals run and pass. The committed journals contain every call.
Scripts have the calls that those journals refuse.

Some tests plant an answer that differs, a pool that is smaller than the journal's, or too many
operations.
"""

from __future__ import annotations

import ast
import re
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import kvpool
from kvpool._core.vllm import VllmPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PINNED: Final = sorted((Path(__file__).parents[1] / "rust/kvpool-journal/tests/pinned").glob("*.journal"))
#: Journals that cache blocks of several groups in one call. Python has no such call.
RUST_ONLY: Final = {"vllm-0", "vllm-1", "vllm-2", "vllm-3"}
#: Request ids that have to be escaped in source text. Some differ only in the character after an
#: escape.
IDS: Final[list[int | str]] = [
    0,
    -(2**63),
    2**64 - 1,
    "0",
    "\x00",
    "\x001",
    "a\u0301",
    "\u202ex",
    '"\\',
    "\N{GRINNING FACE}",
    "\x1b]0;x\x07",
    "too long for one literal, " * 9,
    '", "' * 50,
    "\\\x00" * 90,
]


def ring(every: int = 5) -> kvpool.journal.Journal:
    return kvpool.journal.Journal(ring_bytes=1 << 24, digest_every=every)


def image_of(pool: kvpool.BlockPool | kvpool.CacheManager | VllmPool) -> bytes:
    image = pool.journal_image() if isinstance(pool, VllmPool) else pool.journal.image()
    return image or b""


def manager_calls() -> kvpool.CacheManager:
    """Makes calls with ids of all kinds, swaps in both directions, and a plan with every kind of row."""
    manager = kvpool.CacheManager(60, 2, host_blocks=20, journal=ring())
    for at, request in enumerate(IDS):
        manager.admit(request, [at] * 3)
    manager.commit(IDS[:2], [3, 3])
    manager.trim_window(IDS[0], 1)
    out = manager.swaps.begin_out([IDS[2]])
    manager.take_plan()
    manager.swaps.complete(out)
    back = manager.swaps.begin_in([IDS[2]])
    manager.swaps.abort(back)
    manager.preempt(IDS[3])
    step = manager.plan_step()
    step.admit("new", manager.prepare([7] * 4))
    step.resume(IDS[3])
    step.append(IDS[4], [5, 6])
    step.append_ragged([IDS[5]], [1], [0, 1])
    step.preempt(IDS[6])
    step.release(IDS[7])
    step.commit()
    return manager


def pool_calls() -> kvpool.BlockPool:
    limits = kvpool.TenantLimits(1, floor=1, ceiling=4)
    retention = kvpool.RetentionConfig(pin_budget=2, tenants=[limits])
    pool = kvpool.BlockPool(20, 2, retention=retention, event_capacity=9, journal=ring())
    chain = kvpool.BlockHasher(block_size=2).cursor([1, 2, 3, 4]).chain()
    pool.register(pool.allocate(2), chain)
    pool.retention.assign_tenant([1, 2], 1)
    pool.mark_computed([1, 2])
    pool.clock.advance(4.5)
    pool.retention.retain([1], kvpool.Retention(80, ttl=2.5))
    pool.release([1, 2])
    for blocks in range(5):
        pool.release(pool.allocate(blocks))
    pool.reset()
    return pool


def vllm_calls() -> VllmPool:
    pool = VllmPool(12, True, "lru", ring())
    taken = pool.allocate(4)[0]
    pool.cache_full(taken, [bytes([at]) * 32 for at in range(4)], 0, 4, 4, 0, None)
    pool.evict(taken[0].block_id, False)
    pool.free(taken)
    for blocks in range(4):
        pool.free(pool.allocate(blocks)[0])
    pool.reset()
    return pool


Made = kvpool.BlockPool | kvpool.CacheManager | VllmPool
SCRIPTS: Final[list[Callable[[], Made]]] = [manager_calls, pool_calls, vllm_calls]


def execute(text: str, **instead: object) -> dict[str, Any]:
    """Runs the source text of an exported test. ``instead`` contains replacements for names of kvpool."""
    module: dict[str, Any] = {}
    exec(compile(text, "exported", "exec"), module)
    module["kvpool"] = types.SimpleNamespace(**{**vars(kvpool), "hashing": kvpool.hashing, **instead})
    module["test_journal"]()
    return module


def accepted(image: bytes, text: str) -> set[str]:
    """Returns the calls of an exported test that were not refused."""
    info = kvpool.journal.read_journal(image, start=0, count=10_000)
    answers = dict(re.findall(r"    # (\d+): (.*)", text))
    done = {(number, call) for number, call, _ in info.lines if call != "digest"}
    return {
        f"{info.subject} {call}" for number, call in done if not answers[str(number)].startswith("refused")
    }


def test_every_call_is_exported_and_runs() -> None:
    called: set[str] = set()
    found: set[str] = set()
    exported = [path.read_bytes() for path in PINNED if path.stem not in RUST_ONLY]
    for image in exported + [image_of(script()) for script in SCRIPTS]:
        info = kvpool.journal.read_journal(image)
        called |= {f"{info.subject} {call}" for call in info.calls}
        text = kvpool.journal.export_journal(image, "python")
        assert text.isascii()
        assert max(map(len, text.splitlines())) <= 110
        execute(text)
        found |= accepted(image, text)
    assert (called, len(found)) == (found, 93)


def test_a_call_without_a_name_in_python_is_refused() -> None:
    refused = [path for path in PINNED if path.stem in RUST_ONLY]
    assert len(refused) == 4
    for path in refused:
        with pytest.raises(
            kvpool.errors.JournalError, match="has no call in Python: it caches blocks of several groups"
        ):
            kvpool.journal.export_journal(path, "python")


def test_a_manager_ends_as_it_did() -> None:
    manager = manager_calls()
    found: list[kvpool.CacheManager] = []

    def remember(*arguments: Any, **named: Any) -> kvpool.CacheManager:
        found.append(kvpool.CacheManager(*arguments, **named))
        return found[-1]

    execute(kvpool.journal.export_journal(image_of(manager), "python"), CacheManager=remember)
    (again,) = found
    assert (again.diagnose.free_order(), again.diagnose.eviction_order()) == (
        manager.diagnose.free_order(),
        manager.diagnose.eviction_order(),
    )
    assert [again.block_ids(request) for request in IDS if request in again] == [
        manager.block_ids(request) for request in IDS if request in manager
    ]


def others(text: str) -> Iterator[str]:
    """Yields copies of the test.

    In each copy, another expected answer is replaced by a wrong one, so the test must fail.
    """
    starts = [0, *(found.end() for found in re.finditer("\n", text))]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare):
            call, answer = node.test.left, node.test.comparators[0]
            start = starts[(call.end_lineno or 0) - 1] + (call.end_col_offset or 0)
            end = starts[(answer.end_lineno or 0) - 1] + (answer.end_col_offset or 0)
            # If a message is long, it is in brackets, which are not part of its syntax node.
            rest = text[end:].removeprefix("\n    )")
            yield text[:start] + ' == "another"' + rest


@pytest.mark.parametrize("script", SCRIPTS)
def test_another_answer_fails(script: Callable[[], Made]) -> None:
    changed = list(others(kvpool.journal.export_journal(image_of(script()), "python")))
    assert len(changed) > 10
    for one in changed:
        with pytest.raises(AssertionError):
            execute(one)


def test_another_pool_fails() -> None:
    pool = kvpool.BlockPool(9, 2, journal=ring())
    held = pool.allocate(8)
    pool.release(held)
    text = kvpool.journal.export_journal(image_of(pool), "python")
    execute(text)
    with pytest.raises(AssertionError):
        execute(text, BlockPool=lambda _, *arguments, **named: kvpool.BlockPool(7, *arguments, **named))


def test_resumed_in_another_epoch_a_prompt_is_the_one_that_another_admitted() -> None:
    manager = kvpool.CacheManager(40, 2, journal=ring())
    manager.admit("first", [5] * 6)
    manager.preempt("first")
    manager.bump_epoch()
    manager.admit("second", [5] * 6)
    manager.commit("second", 6)
    assert manager.resume("first").cached_tokens == 4
    text = kvpool.journal.export_journal(image_of(manager), "python")
    assert "== [4, " in text
    execute(text)


def long(operations: int) -> bytes:
    pool = kvpool.BlockPool(9, 2, journal=ring(0))
    for _ in range(operations // 2):
        pool.release(pool.allocate(3))
    return image_of(pool)


def test_a_long_journal_is_refused_before_anything_is_written() -> None:
    pieces: list[str] = []
    message = (
        r"the journal has 10,?002 operations, and a test has at most 10,?000: bisect and shrink it first"
    )
    for language in ("rust", "python"):
        with pytest.raises(kvpool.errors.JournalError, match=message):
            kvpool.journal.export_journal(long(10_002), language, write=pieces.append)
    assert not pieces
    kvpool.journal.export_journal(long(10_002), "python", limit=10_002, write=pieces.append)
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="limit"):
        kvpool.journal.export_journal(long(2), "python", limit=-1)


def test_pieces_are_small_and_make_the_test() -> None:
    image = long(8000)
    for language in ("rust", "python"):
        pieces: list[str] = []
        kvpool.journal.export_journal(image, language, write=pieces.append)
        assert len(pieces) > 5
        assert max(map(len, pieces)) <= 1 << 16
        assert "".join(pieces) == kvpool.journal.export_journal(image, language)


def test_what_a_writer_raises_ends_the_export() -> None:
    pieces: list[str] = []

    def write(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == 2:
            raise KeyError("full")

    with pytest.raises(KeyError, match="full"):
        kvpool.journal.export_journal(long(8000), "python", write=write)
    assert len(pieces) == 2


def test_export_of_a_language_that_is_none() -> None:
    image = long(10)
    assert "fn " in kvpool.journal.export_journal(image, "rust")
    with pytest.raises(
        kvpool.errors.InvalidArgumentError, match='language is "cobol": must be one of rust, python'
    ):
        kvpool.journal.export_journal(image, "cobol")  # type: ignore[call-overload]
