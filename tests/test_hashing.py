"""Tests hashes: the published vectors, vLLM's encodings rebuilt in Python, cursors, extra keys, and
equal results in all processes.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cbor2
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import kvpool

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvpool._core import HashAlgorithm, VerifyMode

VECTORS = Path(__file__).resolve().parent.parent / "rust/kvpool-hash/tests/data/hash_vectors.json"
DOCUMENT: dict[str, Any] = json.loads(VECTORS.read_text(encoding="utf-8"))
CASES = [(case, algorithm) for case in DOCUMENT["chains"] for algorithm in case["digests"]]
NATIVE = ["sha256", "blake3", "xxh3"]
VLLM = ["vllm-sha256", "vllm-sha256-cbor", "vllm-xxhash", "vllm-xxhash-cbor"]


def vector_tokens(tokens: Any) -> list[int]:
    if isinstance(tokens, list):
        return tokens
    return [(i * tokens["mul"] + tokens["add"]) % tokens["mod"] for i in range(tokens["count"])]


def vector_extra(extra: dict[str, Any]) -> kvpool.ExtraKeys:
    def field(name: str) -> bytes | None:
        return bytes.fromhex(extra[name]) if name in extra else None

    adapter = extra.get("adapter", {})
    items = [
        (bytes.fromhex(one["identifier"]), one["offset"], one["length"])
        for one in extra.get("multimodal", [])
    ]
    return kvpool.ExtraKeys(
        adapter=bytes.fromhex(adapter["id"]) if adapter else None,
        adapter_path=adapter.get("path"),
        salt=field("salt"),
        tenant=field("tenant"),
        user=field("user"),
        multimodal=items,
    )


def vector_hasher(
    case: dict[str, Any], algorithm: HashAlgorithm, verify: VerifyMode = "none"
) -> kvpool.BlockHasher:
    key = bytes.fromhex(case["key"]) if "key" in case else None
    return kvpool.BlockHasher(algorithm, case["block_size"], verify=verify, key=key, seed=case.get("seed"))


def test_the_file_has_every_algorithm() -> None:
    assert {algorithm for _, algorithm in CASES} == set(kvpool.hashing.hash_algorithms()) == {*NATIVE, *VLLM}
    assert len(CASES) > 300


@pytest.mark.parametrize(
    ("case", "algorithm"), CASES, ids=lambda one: one if isinstance(one, str) else one["name"]
)
def test_digests_are_the_published_ones(case: dict[str, Any], algorithm: HashAlgorithm) -> None:
    tokens, extra = vector_tokens(case["tokens"]), vector_extra(case["extra"])
    epoch = case["extra"].get("epoch", 0)
    hasher = vector_hasher(case, algorithm)
    expected = [bytes.fromhex(digest) for digest in case["digests"][algorithm][1:]]
    assert hasher.hash_tokens(tokens, extra, epoch=epoch) == expected
    # If the tokens are appended a few at a time, the digests are the same.
    cursor = hasher.cursor(None, extra, epoch=epoch)
    for start in range(0, len(tokens), 7):
        cursor.append(tokens[start : start + 7])
    assert cursor.digests() == cursor.chain().digests() == expected
    assert cursor.hashed_blocks == len(expected)


@pytest.mark.parametrize("case", DOCUMENT["chains"], ids=lambda case: case["name"])
def test_fingerprints_are_the_published_ones(case: dict[str, Any]) -> None:
    epoch = case["extra"].get("epoch", 0)
    verifying: list[VerifyMode] = ["fingerprint", "tokens"]
    for algorithm, verify in itertools.product(case["digests"], verifying):
        cursor = vector_hasher(case, algorithm, verify).cursor(
            vector_tokens(case["tokens"]), vector_extra(case["extra"]), epoch=epoch
        )
        found = [one.to_bytes(16, "little").hex() for one in cursor.chain().fingerprints()]
        assert found == case["fingerprints"][1:]
    assert vector_hasher(case, next(iter(case["digests"]))).cursor([]).chain().fingerprints() == []


def vllm_hash(algorithm: HashAlgorithm) -> Callable[[Any], bytes]:
    def serialize(value: Any) -> bytes:
        if algorithm.endswith("cbor"):
            return cbor2.dumps(value, canonical=True)
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)

    if "sha256" in algorithm:
        return lambda value: hashlib.sha256(serialize(value)).digest()
    return lambda value: xxhash.xxh3_128_digest(serialize(value))


def vllm_chain(
    algorithm: HashAlgorithm, seed: str, tokens: list[int], block_size: int, first: Any, later: Any
) -> list[bytes]:
    hash_of, parent, digests = vllm_hash(algorithm), vllm_hash(algorithm)(seed), []
    for start in range(0, len(tokens) // block_size * block_size, block_size):
        parent = hash_of((parent, tuple(tokens[start : start + block_size]), later if start else first))
        digests.append(parent)
    return digests


EDGES = st.sampled_from([0, 1, 23, 24, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1])


@pytest.mark.parametrize("algorithm", VLLM)
@given(
    tokens=st.lists(EDGES | st.integers(0, 2**32 - 1), max_size=40),
    block_size=st.integers(1, 9),
    seed=st.text(max_size=12),
    salt=st.none() | st.text(min_size=1, max_size=8),
    adapter=st.none() | st.text(max_size=8),
)
def test_vllm_digests_are_those_of_pickle_and_cbor(
    algorithm: HashAlgorithm,
    tokens: list[int],
    block_size: int,
    seed: str,
    salt: str | None,
    adapter: str | None,
) -> None:
    # Append a letter to get a new object of the string, because pickle recognizes repeated objects by
    # identity.
    lora = [] if adapter is None else [("lora", (adapter + ".").encode().decode()[:-1], None)]
    salted = [] if salt is None else [("cache_salt", (salt + ".").encode().decode()[:-1])]
    expected = vllm_chain(
        algorithm, seed, tokens, block_size, tuple(lora + salted) or None, tuple(lora) or None
    )
    hasher = kvpool.BlockHasher(algorithm, block_size, seed=seed)
    assert hasher.hash_tokens(tokens, kvpool.ExtraKeys(salt=salt, adapter=adapter)) == expected


@pytest.mark.parametrize("algorithm", VLLM[:2])
def test_vllm_without_a_seed_starts_from_its_published_root(algorithm: HashAlgorithm) -> None:
    expected = vllm_chain(algorithm, "vllm-none-hash", list(range(8)), 4, None, None)
    assert kvpool.BlockHasher(algorithm, 4).hash_tokens(range(8)) == expected
    assert vllm_hash(algorithm)("vllm-none-hash").hex() == DOCUMENT["none_hash"][algorithm]


@pytest.mark.parametrize("algorithm", VLLM)
@pytest.mark.parametrize("field", ["tenant", "user"])
def test_vllm_refuses_what_it_cannot_represent(algorithm: HashAlgorithm, field: str) -> None:
    hasher = kvpool.BlockHasher(algorithm, 4, seed="0")
    with pytest.raises(kvpool.errors.HashingError, match=field):
        hasher.hash_tokens(range(4), extra_of({field: "x"}))


@pytest.mark.parametrize("algorithm", kvpool.hashing.hash_algorithms())
def test_a_token_that_completes_no_block_is_not_hashed(algorithm: HashAlgorithm) -> None:
    cursor = kvpool.BlockHasher(algorithm, 4, seed=None if algorithm == "blake3" else "0").cursor([1, 2])
    for token in range(3, 41):
        done = cursor.append([token])
        assert done == (token % 4 == 0)
        assert cursor.hashed_blocks == token // 4
        assert cursor.tail == list(range(token // 4 * 4 + 1, token + 1))
    chain = cursor.chain()
    cursor.truncate(22)
    assert (cursor.hashed_blocks, cursor.num_tokens, len(cursor), cursor.tail) == (10, 22, 22, [21, 22])
    cursor.append([23])
    assert cursor.hashed_blocks == 10
    cursor.append([24])
    assert (cursor.hashed_blocks, cursor.digests()) == (11, chain.digests()[:6])
    assert len(chain) == 10  # an earlier chain does not change


@given(
    tokens=st.lists(st.integers(0, 3), max_size=30),
    cuts=st.lists(st.tuples(st.integers(0, 30), st.lists(st.integers(0, 3), max_size=10)), max_size=6),
)
def test_truncate_and_append_give_what_a_new_cursor_gives(
    tokens: list[int], cuts: list[tuple[int, list[int]]]
) -> None:
    hasher = kvpool.BlockHasher(block_size=3, verify="tokens")
    cursor = hasher.cursor(tokens)
    for keep, more in cuts:
        fork = cursor.copy()
        keep = min(keep, len(tokens))
        cursor.truncate(keep)
        cursor.append(more)
        assert fork.digests() == hasher.hash_tokens(tokens)
        tokens = tokens[:keep] + more
        fresh = hasher.cursor(tokens).chain()
        assert cursor.digests() == fresh.digests()
        assert cursor.chain().fingerprints() == fresh.fingerprints()
        assert (cursor.num_tokens, cursor.tail) == (len(tokens), tokens[len(tokens) // 3 * 3 :])


def test_rebase_hashes_again_and_only_if_the_epoch_differs() -> None:
    hasher = kvpool.BlockHasher(block_size=4)
    cursor = hasher.cursor(range(10))
    cursor.rebase(0)
    assert cursor.hashed_blocks == 2
    cursor.rebase(3)
    assert (cursor.epoch, cursor.hashed_blocks) == (3, 4)
    assert cursor.digests() == hasher.hash_tokens(range(10), epoch=3) != hasher.hash_tokens(range(10))
    assert cursor.tail == [8, 9]


def test_truncating_beyond_the_end_is_refused() -> None:
    cursor = kvpool.BlockHasher(block_size=4).cursor(range(10))
    with pytest.raises(kvpool.errors.HashingError, match=r"11.*10"):
        cursor.truncate(11)
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="-1"):
        cursor.truncate(-1)
    assert len(cursor) == 10


FIELDS = ["adapter", "salt", "tenant", "user", "item"]


def extra_of(values: dict[str, str]) -> kvpool.ExtraKeys:
    return kvpool.ExtraKeys(
        adapter=values.get("adapter"),
        salt=values.get("salt"),
        tenant=values.get("tenant"),
        user=values.get("user"),
        multimodal=[(values["item"], 0, 1)] if "item" in values else None,
    )


@pytest.mark.parametrize("algorithm", NATIVE)
def test_equal_strings_in_different_fields_give_different_digests(algorithm: HashAlgorithm) -> None:
    hasher = kvpool.BlockHasher(algorithm, 4)
    digests = {tuple(hasher.hash_tokens(range(8)))}
    count = 1
    for size in range(1, len(FIELDS) + 1):
        for fields in itertools.combinations(FIELDS, size):
            for strings in itertools.product(["same", ""], repeat=size):
                digests.add(
                    tuple(hasher.hash_tokens(range(8), extra_of(dict(zip(fields, strings, strict=True)))))
                )
                count += 1
    with_path = kvpool.ExtraKeys(adapter="same", adapter_path="same")
    digests.add(tuple(hasher.hash_tokens(range(8), with_path)))
    digests.add(tuple(hasher.hash_tokens(range(8), epoch=1)))
    assert len(digests) == count + 2 == 3**5 + 2


@pytest.mark.parametrize("algorithm", VLLM)
def test_vllm_hashes_differ_by_field(algorithm: HashAlgorithm) -> None:
    hasher = kvpool.BlockHasher(algorithm, 4, seed="0")
    extras = [
        None,
        kvpool.ExtraKeys(adapter="same"),
        kvpool.ExtraKeys(adapter="same", adapter_path="same"),
        kvpool.ExtraKeys(salt="same"),
        kvpool.ExtraKeys(multimodal=[("same", 0, 1)]),
        kvpool.ExtraKeys(multimodal=[("same", 1, 1)]),
        kvpool.ExtraKeys(multimodal=[("same", 0, 1), ("same", 1, 1)]),
        kvpool.ExtraKeys(adapter="same", salt="same"),
        kvpool.ExtraKeys(salt="same", multimodal=[("same", 0, 1)]),
        kvpool.ExtraKeys(adapter="same", multimodal=[("same", 0, 1)]),
    ]
    digests = [tuple(hasher.hash_tokens(range(4), extra)) for extra in extras]
    assert len(set(digests)) == len(extras)


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(FIELDS), st.text("ab\0", max_size=3), max_size=3),
            st.lists(st.integers(0, 1), min_size=2, max_size=2),
        ),
        min_size=2,
        max_size=2,
    )
)
def test_equal_digests_mean_equal_tokens_and_extra_keys(both: list[tuple[dict[str, str], list[int]]]) -> None:
    hasher = kvpool.BlockHasher(block_size=2)
    (extra_1, tokens_1), (extra_2, tokens_2) = both
    digests = [hasher.hash_tokens(tokens, extra_of(extra)) for extra, tokens in both]
    assert (digests[0] == digests[1]) == (extra_1 == extra_2 and tokens_1 == tokens_2)
    assert (extra_of(extra_1) == extra_of(extra_2)) == (extra_1 == extra_2)


def test_an_item_changes_the_blocks_it_overlaps_and_all_later_ones() -> None:
    hasher = kvpool.BlockHasher(block_size=4)
    plain = hasher.hash_tokens(range(12))
    item = hasher.hash_tokens(range(12), kvpool.ExtraKeys(multimodal=[("image", 5, 2)]))
    assert [one == other for one, other in zip(plain, item, strict=True)] == [True, False, False]


@st.composite
def turns(draw: st.DrawFn) -> tuple[list[list[int]], list[list[tuple[str, int, int]]]]:
    """Draws the tokens and the multimodal items of several turns. An item begins at or after the end of
    the earlier tokens.
    """
    tokens = draw(st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=5))
    ends = [0, *itertools.accumulate(map(len, tokens))]
    item = st.tuples(st.text("ab", max_size=2), st.integers(0, 20), st.integers(0, 6))
    items = [draw(st.lists(item, max_size=3)) for _ in tokens]
    return tokens, [
        [(name, at + end, long) for name, at, long in some] for some, end in zip(items, ends, strict=False)
    ]


@pytest.mark.parametrize("algorithm", kvpool.hashing.hash_algorithms())
@given(conversation=turns())
def test_a_conversation_hashed_in_turns_is_hashed_at_once(
    algorithm: HashAlgorithm, conversation: tuple[list[list[int]], list[list[tuple[str, int, int]]]]
) -> None:
    tokens, items = conversation
    seed = None if algorithm == "blake3" else "x"
    hasher = kvpool.BlockHasher(algorithm, 4, verify="fingerprint", seed=seed)
    cursor = hasher.cursor(tokens[0], kvpool.ExtraKeys(multimodal=items[0]))
    completed = sum(
        cursor.append(one, multimodal=iter(some)) for one, some in zip(tokens[1:], items[1:], strict=True)
    )
    extra = kvpool.ExtraKeys(multimodal=[item for some in items for item in some])
    once = hasher.cursor([token for one in tokens for token in one], extra)
    assert completed == len(cursor.chain()) - len(tokens[0]) // 4
    assert cursor.digests() == once.digests()
    assert cursor.chain().fingerprints() == once.chain().fingerprints()
    end = len(cursor)
    cursor.truncate(0)
    cursor.append([7] * 40)
    ahead = [item for some in items for item in some if item[1] >= end]
    assert cursor.digests() == hasher.hash_tokens([7] * 40, kvpool.ExtraKeys(multimodal=ahead))


def test_items_of_a_turn_that_begin_too_early() -> None:
    cursor = kvpool.BlockHasher(block_size=4).cursor(range(6))
    before = cursor.digests()
    for items, message in (
        ([("image", 5, 1)], "multimodal item 0 begins at token 5, must begin at token 6 or later"),
        ([("image", 6, 1), ("image", 0, 8)], "multimodal item 1 begins at token 0"),
        ([("image", 6, 2**63)], "multimodal item 0 ends at"),
    ):
        with pytest.raises(kvpool.errors.HashingError, match=message):
            cursor.append([6, 7], multimodal=items)
        assert (len(cursor), cursor.digests(), cursor.hashed_blocks) == (6, before, 1)
    assert cursor.append([6, 7], multimodal=[("image", 6, 1)]) == 1
    assert cursor.digests()[1] != kvpool.BlockHasher(block_size=4).hash_tokens(range(8))[1]
    fork = cursor.copy()
    cursor.truncate(7)  # the item stays
    fork.truncate(6)  # the item is removed
    assert cursor.append([7]) == fork.append([6, 7]) == 1
    assert cursor.digests() != fork.digests() == kvpool.BlockHasher(block_size=4).hash_tokens(range(8))


PROGRAM = """
import kvpool
extra = kvpool.ExtraKeys(adapter="a", salt="s", multimodal=[("i", 1, 3)])
for algorithm in kvpool.hashing.hash_algorithms():
    hasher = kvpool.BlockHasher(algorithm, 4, verify="tokens", seed=None if algorithm == "blake3" else "x")
    chain = hasher.cursor(range(100), extra, epoch=2).chain()
    print(algorithm, [digest.hex() for digest in chain.digests()], chain.fingerprints())
"""


def test_digests_are_equal_in_every_process() -> None:
    def output(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", PROGRAM]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    outputs = {output(seed) for seed in ["0", "1", "4294967295", "random"]}
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) == 7


@pytest.mark.parametrize("algorithm", kvpool.hashing.hash_algorithms())
def test_a_chain_of_digests_is_the_chain(algorithm: HashAlgorithm) -> None:
    hasher = kvpool.BlockHasher(algorithm, 4, seed=None if algorithm == "blake3" else "0")
    chain = hasher.cursor(range(13), epoch=5).chain()
    made = kvpool.hashing.HashChain.from_digests(algorithm, 4, chain.digests(), epoch=5)
    assert (made.algorithm, made.block_size, made.epoch, len(made)) == (algorithm, 4, 5, 3)
    assert made.digests() == chain.digests()
    assert made.fingerprints() == []
    assert {len(digest) for digest in made.digests()} == {16 if "xx" in algorithm else 32}


def test_a_chain_of_digests_hits_what_its_tokens_stored() -> None:
    pool = kvpool.BlockPool(8, 4)
    chain = kvpool.BlockHasher(block_size=4).cursor(range(13)).chain()
    table = pool.allocate(3)
    pool.register(table, chain)
    pool.mark_computed(table)
    pool.release(table, tail_first=True)
    assert (
        pool.match_and_acquire(kvpool.hashing.HashChain.from_digests("sha256", 4, chain.digests())) == table
    )
    with pytest.raises(kvpool.errors.StaleEpochError):
        pool.probe(kvpool.hashing.HashChain.from_digests("sha256", 4, chain.digests(), epoch=1))


@pytest.mark.parametrize(
    ("digests", "message"),
    [([b""], "0 bytes"), ([b"x" * 33], "33 bytes"), ([b"y" * 32, b"z" * 40], "40 bytes")],
)
def test_digests_of_wrong_length_are_refused(digests: list[bytes], message: str) -> None:
    with pytest.raises(kvpool.errors.HashingError, match=message):
        kvpool.hashing.HashChain.from_digests("sha256", 4, digests)


@pytest.mark.parametrize("length", [0, 1, 15, 17, 32])
def test_digests_of_another_length_than_the_algorithm_makes_are_refused(length: int) -> None:
    with pytest.raises(kvpool.errors.HashingError, match="those of xxh3 have 16"):
        kvpool.hashing.HashChain.from_digests("xxh3", 4, [b"x" * length])


def test_a_pool_that_verifies_refuses_chains_without_fingerprints() -> None:
    pool = kvpool.BlockPool(8, 4, verify="fingerprint")
    digests = kvpool.BlockHasher(block_size=4).hash_tokens(range(4))
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="fingerprint"):
        pool.probe(kvpool.hashing.HashChain.from_digests("sha256", 4, digests))
    unverified = kvpool.BlockPool(8, 4)
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="xxh3"):
        unverified.probe(kvpool.BlockHasher("xxh3", 4).cursor(range(4)).chain())


@pytest.mark.parametrize("algorithm", NATIVE)
def test_links_from_digests(algorithm: HashAlgorithm) -> None:
    hasher = kvpool.BlockHasher(algorithm, 2)
    extra = kvpool.ExtraKeys(salt="s", multimodal=[("image", 3, 2)])
    parent, links = None, []
    for at in range(3):
        parent = hasher.link([2 * at, 2 * at + 1], parent, extra, epoch=5)
        links.append(parent)
    for at, link in enumerate(links):
        before = links[at - 1].digest if at else None
        made = kvpool.hashing.ChainLink.from_digest(
            algorithm, link.digest, [2 * at, 2 * at + 1], parent=before, depth=at, epoch=5
        )
        assert made == link
        assert (made.depth, made.num_tokens, made.epoch) == (at, 2 * at + 2, 5)
        assert hasher.link([9, 9], made, extra, epoch=5) == hasher.link([9, 9], link, extra, epoch=5)


def test_links_from_digests_that_are_none() -> None:
    digest = bytes(32)
    for wrong, error in (
        ({"depth": 1}, kvpool.errors.InvalidArgumentError),
        ({"parent": digest}, kvpool.errors.InvalidArgumentError),
        ({"depth": -1}, kvpool.errors.InvalidArgumentError),
        ({"epoch": -1}, kvpool.errors.InvalidArgumentError),
        ({"algorithm": "md5"}, kvpool.errors.InvalidArgumentError),
        ({"digest": bytes(31)}, kvpool.errors.HashingError),
        ({"parent": bytes(16), "depth": 1}, kvpool.errors.HashingError),
        ({"tokens": []}, kvpool.errors.HashingError),
        ({"tokens": [-1]}, kvpool.errors.TokenError),
    ):
        asked: dict[str, Any] = {"algorithm": "sha256", "digest": digest, "tokens": [1, 2], **wrong}
        with pytest.raises(error):
            kvpool.hashing.ChainLink.from_digest(**asked)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_extra_keys_can_be_pickled(protocol: int) -> None:
    for extra in (
        kvpool.ExtraKeys(),
        kvpool.ExtraKeys(adapter="a"),
        kvpool.ExtraKeys(
            adapter=b"\xff",
            adapter_path="/a",
            salt="s",
            tenant="t",
            user="u",
            multimodal=[("i", 3, 2), ("j", 9, 1)],
        ),
    ):
        again = pickle.loads(pickle.dumps(extra, protocol))
        assert again == extra
        assert again is not extra
        assert copy.deepcopy(extra) == extra
