"""Tests warm restarts in Python: which blocks are restored, which images are refused, and cold starts."""

from __future__ import annotations

import mmap
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.errors import InvalidArgumentError, StoreError
from kvpool.store import Arena, Namespace, SlotHeaders, load_index, save_index

if TYPE_CHECKING:
    from pathlib import Path

BLOCKS, BYTES = 40, 4096


def namespace(weights: str = "w") -> Namespace:
    return Namespace(
        model="m",
        weights=weights,
        kv_dtype="bf16",
        scales="",
        block_size=4,
        layouts=[(0, "NHD", [4, 2, 8], [16, 8, 1])],
        layers=(0, 1),
        heads=(0, 2),
        hash_algorithm="sha256",
        hash_seed=b"",
        extra={},
    )


class Engine:
    """An engine whose KV memory is a file. The KV of a block is its hash, repeated."""

    def __init__(self, folder: Path, *, weights: str = "w", payloads: bool = True, **more: Any) -> None:
        folder.mkdir(exist_ok=True)
        if not (folder / "memory").exists():
            (folder / "memory").write_bytes(bytes(BLOCKS * BYTES))
        with (folder / "memory").open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)
        self.namespace, self.folder = namespace(weights), folder
        self.slots = SlotHeaders(folder / "slots", Arena.over(self.memory, BYTES), self.namespace)
        self.manager = kvpool.CacheManager(BLOCKS, 4, **more)
        if more.get("retention"):
            self.manager.clock.advance(0.0)
        self.warm = load_index(
            self.manager, folder / "index", self.namespace, slots=self.slots, payloads=payloads
        )
        self.number = 0

    def serve(self, tokens: list[int], **more: Any) -> kvpool.Admission:
        self.number += 1
        admission = self.manager.admit(self.number, tokens, **more)
        digests = self.manager.prepare(self.number).digests()
        for block, digest in zip(admission.block_ids[: admission.cached_blocks], digests, strict=False):
            assert self.memory[block * BYTES : (block + 1) * BYTES] == digest * (BYTES // 32), "WRONG KV"
        new = admission.block_ids[admission.cached_blocks : len(digests)]
        self.slots.clear(new)
        for block, digest in zip(new, digests[admission.cached_blocks :], strict=True):
            self.memory[block * BYTES : (block + 1) * BYTES] = digest * (BYTES // 32)
        self.slots.seal(new, digests[admission.cached_blocks :])
        self.manager.commit(self.number, len(tokens))
        self.manager.release(self.number)
        return admission

    def save(self) -> int:
        return save_index(self.manager, self.folder / "index", self.namespace)

    def restarted(self, **more: Any) -> Engine:
        """Returns the engine after a restart. The old manager remains, so that the test can compare the
        two.
        """
        del self.slots
        return Engine(self.folder, **more)


def prompt(draw: random.Random) -> list[int]:
    return [7] * 8 + [draw.randrange(6)] * draw.randrange(1, 24)


@pytest.mark.parametrize("seed", range(6))
def test_an_engine_goes_on_as_if_it_had_never_stopped(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    first = Engine(tmp_path / "engine")
    assert first.warm.cold == "there is no snapshot"
    for _ in range(draw.randrange(5, 30)):
        first.serve(prompt(draw))
    saved = first.save()
    shutil.copytree(tmp_path / "engine", tmp_path / "another")
    second = Engine(tmp_path / "another")
    assert (second.warm.blocks, second.warm.refused, second.warm.lost, second.warm.cold) == (
        saved,
        0,
        0,
        None,
    )
    assert second.warm.age >= 0
    for _ in range(30):
        tokens = prompt(draw)
        assert second.serve(tokens) == first.serve(tokens)
        second.manager.diagnose.check_invariants()


def test_what_was_overwritten_since_is_a_miss(tmp_path: Path) -> None:
    first = Engine(tmp_path / "engine")
    first.serve(list(range(101)))
    saved = first.save()
    for turn in range(3):
        first.serve([1000 + turn] * 60)
    second = first.restarted()
    assert second.warm.refused > 0
    assert second.warm.blocks + second.warm.refused == saved
    second.serve(list(range(101)))
    second.manager.diagnose.check_invariants()


@pytest.mark.parametrize("payloads", [True, False])
def test_damaged_bytes_are_found_if_payloads_are_checked(tmp_path: Path, payloads: bool) -> None:
    first = Engine(tmp_path / "engine")
    blocks = first.serve(list(range(17))).block_ids
    first.save()
    first.memory[blocks[2] * BYTES + 99] ^= 1
    second = first.restarted(payloads=payloads)
    assert (second.warm.blocks, second.warm.refused) == ((3, 1) if payloads else (4, 0))


def test_retention_comes_back(tmp_path: Path) -> None:
    config = kvpool.RetentionConfig(pin_budget=2, tenants=[kvpool.TenantLimits(3, ceiling=20)])
    first = Engine(tmp_path / "engine", retention=config)
    first.serve(list(range(17)), tenant=3, retention=[(0, 8, kvpool.Retention(pinned=True))])
    first.serve([50] * 17, retention=[(0, None, kvpool.Retention(80, ttl=1e6, idle=True))])
    first.serve([60] * 17, no_cache=True)
    first.save()
    second = first.restarted(retention=config)
    before, after = first.manager.retention.stats(), second.manager.retention.stats()
    assert before is not None
    assert after is not None
    assert (after.pinned, after.above_normal, after.demoted, after.with_ttl) == (
        before.pinned,
        before.above_normal,
        before.demoted,
        before.with_ttl,
    )
    assert second.manager.retention.tenant_blocks(3) == first.manager.retention.tenant_blocks(3) == 4
    third = kvpool.CacheManager(BLOCKS, 4, retention=config)
    third.clock.advance(0.0)
    load_index(third, tmp_path / "engine/index", namespace(), trusted=True, elapsed=2e6)
    late = third.retention.stats()
    assert late is not None
    assert (late.pinned, late.above_normal, late.with_ttl) == (2, 0, 0)
    with pytest.raises(InvalidArgumentError, match="advance_time"):
        load_index(
            kvpool.CacheManager(BLOCKS, 4, retention=config),
            tmp_path / "engine/index",
            namespace(),
            trusted=True,
        )


def test_restarts_that_are_cold(tmp_path: Path) -> None:
    first = Engine(tmp_path / "engine")
    first.serve(list(range(17)))
    first.save()
    other = first.restarted(weights="others")
    assert "of namespace" in str(other.warm.cold)
    assert (other.warm.blocks, other.warm.age) == (0, 0.0)
    assert other.serve(list(range(17))).cached_tokens == 0
    del other.slots
    index = tmp_path / "engine/index"
    whole = index.read_bytes()
    for bad in (b"", b"notes", whole[:80], bytes(2000)):
        index.write_bytes(bad)
        assert "not a snapshot" in str(Engine(tmp_path / "engine").warm.cold)
    index.write_bytes(whole[: len(whole) // 2])
    torn = Engine(tmp_path / "engine")
    assert (torn.warm.cold, torn.warm.blocks, torn.warm.lost) == (None, 0, 4)


def test_a_pool_too(tmp_path: Path) -> None:
    pool = kvpool.BlockPool(16, 4)
    chain = kvpool.BlockHasher(block_size=4).cursor(range(16)).chain()
    blocks = pool.allocate(4)
    pool.register(blocks, chain)
    pool.mark_computed(blocks)
    pool.release(blocks, tail_first=True)
    assert save_index(pool, tmp_path / "index", namespace()) == 4
    again = kvpool.BlockPool(16, 4, event_capacity=100)
    assert repr(load_index(again, tmp_path / "index", namespace(), trusted=True)) == (
        "WarmStart(blocks=4, refused=0, lost=0)"
    )
    events, _ = again.take_events()
    assert [event["depth"] for event in events if event["type"] == "stored"] == [0, 1, 2, 3]
    assert again.match_and_acquire(chain) == blocks


def test_what_new_weights_computed_is_none_of_the_old_ones(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    old, new = [list(range(20 * n, 20 * n + 17)) for n in range(2)]
    engine.serve(old)
    engine.manager.bump_epoch()
    engine.slots.renew(namespace("new"))
    engine.serve(new)
    save_index(engine.manager, tmp_path / "index", namespace("new"))
    with pytest.raises(InvalidArgumentError, match="another namespace"):
        load_index(kvpool.CacheManager(BLOCKS, 4), tmp_path / "index", namespace(), slots=engine.slots)
    del engine
    assert Engine(tmp_path).warm.cold is not None
    again = Engine(tmp_path, weights="new")
    assert (again.warm.blocks, again.manager.stats().pool.epoch) == (4, 1)
    assert again.serve(new).cached_tokens == 16
    assert again.serve(old).cached_tokens == 0


def test_mistakes_are_named(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "engine")
    engine.serve(list(range(17)))
    engine.save()
    index, ours = tmp_path / "engine/index", namespace()

    def refuse(subject: Any, match: str, **more: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=match):
            load_index(subject, index, ours, **more)

    refuse(kvpool.CacheManager(BLOCKS, 4), "slots or trusted")
    refuse(kvpool.CacheManager(BLOCKS, 4), "slots or trusted", slots=engine.slots, trusted=True)
    refuse(engine.manager, "done nothing yet", trusted=True)
    refuse(kvpool.CacheManager(BLOCKS, 8), "block_size", trusted=True)
    refuse(kvpool.CacheManager(3, 4), "block", trusted=True)
    refuse(
        kvpool.CacheManager(BLOCKS, 4, algorithm="blake3"),
        "algorithm is sha256: must be blake3",
        trusted=True,
    )
    refuse(kvpool.CacheManager(BLOCKS, 4, groups=[kvpool.GroupSpec("full", 4)]), "full group", trusted=True)
    refuse(kvpool.CacheManager(BLOCKS, 4, verify="tokens"), "verify", trusted=True)
    refuse(kvpool.CacheManager(BLOCKS, 4), "elapsed", trusted=True, elapsed=-1.0)
    journal = kvpool.journal.Journal(ring_bytes=1 << 20)
    refuse(kvpool.CacheManager(BLOCKS, 4, journal=journal), "journal", trusted=True)
    others = SlotHeaders(tmp_path / "others", Arena(BLOCKS, BYTES), namespace("others"))
    refuse(kvpool.CacheManager(BLOCKS, 4), "another namespace", slots=others)
    for bad in ([BLOCKS], [1, 99]):
        with pytest.raises(InvalidArgumentError, match="must be less than"):
            others.clear(bad)
    with pytest.raises(InvalidArgumentError, match="2 items for 1 keys"):
        others.seal([1, 2], [b"one"])
    with pytest.raises(StoreError):
        save_index(engine.manager, tmp_path / "no/folder/index", ours)
    with pytest.raises(StoreError):
        SlotHeaders(tmp_path / "no/folder/slots", Arena(4, BYTES), ours)
    with pytest.raises(StoreError, match="one engine at a time"):
        SlotHeaders(tmp_path / "engine/slots", Arena(BLOCKS, BYTES), ours)
    with pytest.raises(TypeError):
        save_index(object(), index, ours)  # type: ignore[arg-type]
