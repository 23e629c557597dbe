"""Tests how tools/vllm_check.py compares engines. It accepts equal records, and reports each difference
as a problem.
"""

from __future__ import annotations

from tools.vllm import check_compare
from tools.vllm.check_compare import EXACT, STOCK, Engine, Event, Record


def stored(*hashes: int, group: int = 0) -> Event:
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": None,
        "group_idx": group,
    }


def removed(*hashes: int, group: int = 0) -> Event:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "group_idx": group}


CLEARED: Event = {"type": "AllBlocksCleared"}


def make_record() -> Record:
    """Makes the record of an engine in which two requests have computed blocks 2 and 3 at the same
    time. Stock vLLM reports both copies of each block.
    """
    return Record(
        tokens=[[[5, 6]], [[7]], [[8, 9]]],
        cached=[0, 32, 0],
        preemptions=3,
        batches=[[stored(1, 2, 3)], [stored(2, 3)], [removed(3)], [removed(3), removed(1)], [CLEARED]],
        seconds=1.0,
    )


def make_exact() -> Record:
    record = make_record()
    record.batches = [[stored(1, 2, 3)], [], [], [removed(3), removed(1)], [CLEARED]]
    return record


# --- Comparison ---


def test_inconsistencies() -> None:
    assert check_compare.inconsistencies(check_compare.changes(make_exact().events)) == []
    assert check_compare.inconsistencies(check_compare.changes(make_record().events)) == [
        "2 hashes are stored while they are there",
        "1 hashes are removed that are not there",
    ]


def test_same_events() -> None:
    assert check_compare.compare_events(make_record(), make_record(), STOCK) == []
    assert check_compare.compare_events(make_record(), make_exact(), EXACT) == []


def test_stock_events_are_compared_one_by_one() -> None:
    swapped = make_record()
    swapped.batches[3].reverse()
    assert check_compare.compare_events(make_record(), swapped, STOCK) == [
        "event batch 3 differs (5 batches, stock 5)"
    ]
    parent = make_record()
    parent.batches[1][0]["parent_block_hash"] = 1
    assert check_compare.compare_events(make_record(), parent, STOCK) == [
        "event batch 1 differs (5 batches, stock 5)"
    ]
    short = make_record()
    del short.batches[-1]
    assert check_compare.compare_events(make_record(), short, STOCK) == [
        "event batch 4 differs (4 batches, stock 5)"
    ]


def test_exact_events_that_are_not() -> None:
    assert check_compare.compare_events(make_record(), make_record(), EXACT) == [
        "2 hashes are stored while they are there",
        "1 hashes are removed that are not there",
        "events, removed: 0 of stock's are missing, 1 are not stock's",
        "events, stored: 0 of stock's are missing, 2 are not stock's",
    ]
    lost = make_exact()
    lost.batches[3].pop()
    assert check_compare.compare_events(make_record(), lost, EXACT) == [
        "events, removed: 1 of stock's are missing, 0 are not stock's"
    ]
    never_cleared = make_exact()
    never_cleared.batches.pop()
    assert check_compare.compare_events(make_record(), never_cleared, EXACT) == [
        "events, cleared: 1 of stock's are missing, 0 are not stock's"
    ]


def test_tokens_cached_tokens_and_preemptions() -> None:
    assert check_compare.compare_tokens(make_record(), make_record()) == []
    one = make_record()
    one.tokens[1][0][0] = 8
    assert check_compare.compare_tokens(make_record(), one) == [
        "1 of 3 prompts got other tokens, the first of them prompt 1"
    ]
    fewer = make_record()
    del fewer.tokens[2], fewer.cached[2]
    assert check_compare.compare_tokens(make_record(), fewer) == [
        "1 of 3 prompts got other tokens, the first of them prompt 2",
        "cached tokens of prompt 2: [], stock [0]",
    ]
    other = make_record()
    other.cached[1], other.preemptions = 16, 4
    assert check_compare.compare_tokens(make_record(), other) == [
        "cached tokens of prompt 1: [16], stock [32]",
        "4 preemptions, stock 3",
    ]


def test_a_run_of_stock_that_shows_nothing() -> None:
    assert check_compare.missing_coverage(make_record()) == []
    empty = Record(tokens=[[[]]], cached=[0], preemptions=0, batches=[], seconds=0.0)
    assert [text.split(":")[0] for text in check_compare.missing_coverage(empty)] == [
        "no tokens were generated",
        "nothing was preempted",
        "no prompt had cached tokens",
        "no KV events of blocks stored and removed",
    ]
    same = make_record()
    same.tokens = [[[1, 2]]] * 3
    assert "many prompts got the same tokens" in check_compare.missing_coverage(same)[0]


def engines() -> list[Engine]:
    stock = Engine(STOCK, STOCK, {"n=1": make_record()})
    pool = Engine("pool", EXACT, {"n=1": make_exact()}, replaced=["BlockPool"])
    return [stock, pool, Engine("pool", STOCK, {"n=1": make_record()}, replaced=["BlockPool"])]


def test_verdict() -> None:
    assert check_compare.verdict(engines()) == []
    stock, pool, plain = engines()
    plain.scenarios["n=1"].preemptions = 9
    assert check_compare.verdict([stock, pool, plain]) == ["pool, events=stock, n=1: 9 preemptions, stock 3"]
    pool.replaced = []
    del plain.scenarios["n=1"]
    stock.replaced = ["BlockPool"]
    assert check_compare.verdict([stock, pool, plain]) == [
        "the level stock is not stock vLLM: kvpool has replaced BlockPool",
        "pool: kvpool left vLLM as it is: this compared stock with stock",
        "pool, events=stock, n=1: not run",
    ]
    pool.broken = "exited with 1"
    assert "pool: exited with 1" in check_compare.verdict([stock, pool])
