"""Compares ``VllmHasher`` with vLLM's hash functions on each block: pickle or CBOR, then SHA-256 or
XXH3.

The expected values are computed in Python, with ``pickle``, ``hashlib``, the package ``xxhash``, and a
CBOR encoder of a few lines.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpool import _core, errors
from tests.integrations.fake_vllm import Lora, Request, fake_vllm, generate_block_hash_extra_keys, part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK = 4
#: The number of tokens of which the hasher converts a prompt at once.
PART = 1 << 14
NONE_HASH = b"\x11" * 32


def cbor(value: Any) -> bytes:
    """Encodes the parts of a block hash as canonical CBOR."""

    def head(kind: int, number: int) -> bytes:
        if number < 24:
            return bytes([kind << 5 | number])
        size = next(size for size in range(4) if number < 1 << (8 << size))
        return bytes([kind << 5 | (24 + size)]) + number.to_bytes(1 << size, "big")

    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return head(0, value) if value >= 0 else head(1, -1 - value)
    if isinstance(value, bytes):
        return head(2, len(value)) + value
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    return head(4, len(value)) + b"".join(map(cbor, value))


def pickled(value: Any) -> bytes:
    return pickle.dumps(value, 5)


ORACLES: dict[str, Callable[[Any], bytes]] = {
    "sha256": lambda block: hashlib.sha256(pickled(block)).digest(),
    "sha256_cbor": lambda block: hashlib.sha256(cbor(block)).digest(),
    "xxhash": lambda block: xxhash.xxh3_128_digest(pickled(block)),
    "xxhash_cbor": lambda block: xxhash.xxh3_128_digest(cbor(block)),
}


def expected(name: str, request: Request, block_size: int = BLOCK) -> list[bytes]:
    """Returns the expected hashes of all full blocks. Each is computed from its parent, its tokens and
    its extra keys.
    """
    hashes: list[bytes] = []
    for end in range(block_size, request.num_tokens + 1, block_size):
        extra, _ = generate_block_hash_extra_keys(request, end - block_size, end, 0)
        parent = hashes[-1] if hashes else NONE_HASH
        hashes.append(ORACLES[name]((parent, tuple(request._all_token_ids[end - block_size : end]), extra)))
    return hashes


@pytest.fixture(scope="module")
def vllm() -> Iterator[Any]:
    with fake_vllm() as package:
        yield package


@pytest.fixture(params=ORACLES)
def name(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


class NotAskedError(Exception):
    """vLLM's hash function was called for a block that the core has to hash itself."""


def make_hasher(vllm: Any, name: str, block_size: int = BLOCK) -> Any:
    hasher = part("hashing").get_request_block_hasher(block_size, getattr(vllm.utils.hashing, name))
    assert type(hasher) is _core.vllm.VllmHasher
    return hasher


@pytest.fixture
def alone(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the test fail if kvpool calls vLLM's hash function."""

    def refuse(*arguments: Any) -> bytes:
        raise NotAskedError

    monkeypatch.setattr(vllm.v1.core.kv_cache_utils, "hash_block_tokens", refuse)


#: Number of examples of each test. The four algorithms share the usual number.
SHARE = settings(max_examples=settings().max_examples // 4)
TOKENS = st.one_of(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 23, 24, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1]),
)


@pytest.mark.longer
@pytest.mark.usefixtures("alone")
def test_text_is_hashed_as_vllm_hashes_it(vllm: Any, name: str) -> None:
    @SHARE
    @given(st.lists(TOKENS, max_size=40), st.integers(1, 20))
    def check(tokens: list[int], block_size: int) -> None:
        request = Request("r", tokens)
        assert make_hasher(vllm, name, block_size)(request) == expected(name, request, block_size)

    check()


@pytest.mark.longer
@pytest.mark.usefixtures("alone")
def test_hashes_of_appended_tokens_go_on_from_the_last(vllm: Any, name: str) -> None:
    @SHARE
    @given(st.lists(st.lists(TOKENS, max_size=9), max_size=8))
    def check(appended: list[list[int]]) -> None:
        hasher, request = make_hasher(vllm, name), Request("r", [])
        for tokens in appended:
            request._all_token_ids += tokens
            request.block_hashes += hasher(request)
            assert request.block_hashes == expected(name, request)

    check()


@pytest.mark.usefixtures("alone")
def test_long_prompts_are_hashed_detached_and_alike(vllm: Any, name: str) -> None:
    request = Request("r", list(range(5000)))
    assert make_hasher(vllm, name, 16)(request) == expected(name, request, 16)
    # The request has one block that is larger than a frame of pickle.
    request = Request("r", list(range(70_000, 90_000)))
    assert make_hasher(vllm, name, 20_000)(request) == expected(name, request, 20_000)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("block_size", [16, 24, PART + 5])
@pytest.mark.parametrize("more", [{}, {"cache_salt": "s"}, {"lora_request": Lora("a", "b")}], ids=str)
def test_prompts_of_several_parts_are_hashed_as_vllm_hashes_them(
    vllm: Any, name: str, block_size: int, more: dict[str, Any]
) -> None:
    part_size = max(PART // block_size, 1) * block_size
    tokens = list(range(2 * part_size + block_size + 1))
    wanted = expected(name, Request("r", tokens, **more), block_size)
    hasher = make_hasher(vllm, name, block_size)
    middles = (part_size, part_size + block_size, 2 * part_size)
    for end in [*(middle + off for middle in middles for off in (-1, 0, 1)), len(tokens)]:
        request = Request("r", tokens[:end], **more)
        assert hasher(request) == wanted[: end // block_size]
        # A later call starts after the first block, so its parts end at other tokens.
        request.block_hashes = wanted[:1]
        assert hasher(request) == wanted[1 : end // block_size]


@pytest.mark.parametrize("change", ["append", "remove"])
@pytest.mark.parametrize("name", ["sha256", "xxhash"])
def test_a_token_list_may_change_between_the_parts_of_a_call(vllm: Any, name: str, change: str) -> None:
    """vLLM's function hashes the first part, because a token of it is a bool. It changes the list. A call
    hashes no tokens that were appended meanwhile, and none that were removed.
    """
    tokens = [True, *range(3 * PART - 1)]
    request = Request("r", tokens[: 2 * PART + 5])
    wanted = expected(name, Request("r", tokens), 16)
    utils = vllm.v1.core.kv_cache_utils
    stock, asked = utils.hash_block_tokens, 0

    def hash_block_tokens(*arguments: Any) -> bytes:
        nonlocal asked
        asked += 1
        if asked == 2 and change == "append":
            request._all_token_ids += tokens[2 * PART + 5 :]
        elif asked == 2:
            del request._all_token_ids[PART + 40 :]
        return bytes(stock(*arguments))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "hash_block_tokens", hash_block_tokens)
        hasher = make_hasher(vllm, name, 16)
        request.block_hashes = hasher(request)
    assert asked == PART // 16
    blocks = 2 * PART // 16 if change == "append" else PART // 16 + 2
    assert request.block_hashes == wanted[:blocks]
    request._all_token_ids[:] = tokens
    assert [*request.block_hashes, *hasher(request)] == wanted


@pytest.mark.longer
@pytest.mark.usefixtures("alone")
def test_extra_keys_are_hashed_as_vllm_hashes_them(vllm: Any, name: str) -> None:
    text = st.text(max_size=5)

    @SHARE
    @given(
        st.lists(TOKENS, min_size=BLOCK, max_size=30),
        st.one_of(st.none(), text),
        st.one_of(st.none(), st.builds(Lora, text, text)),
        st.lists(st.tuples(text, st.integers(0, 20), st.integers(1, 12)), max_size=3),
        st.booleans(),
    )
    def check(
        tokens: list[int],
        salt: str | None,
        lora: Lora | None,
        images: list[tuple[str, int, int]],
        embedded: bool,
    ) -> None:
        # Images must not overlap. Leave out each image that overlaps an earlier one.
        images = sorted(images, key=lambda image: image[1])
        placed = [image for at, image in enumerate(images) if not at or sum(images[at - 1][1:]) <= image[1]]
        embeds = [bytes([token % 256]) for token in tokens] if embedded else None
        request = Request(
            "r", tokens, cache_salt=salt, lora_request=lora, mm_features=placed, prompt_embeds=embeds
        )
        hasher = make_hasher(vllm, name)
        request.block_hashes = hasher(request)
        assert request.block_hashes == expected(name, request)
        request._all_token_ids += tokens
        if embeds is not None:
            embeds += embeds
        assert [*request.block_hashes, *hasher(request)] == expected(name, request)

    check()


@pytest.mark.usefixtures("alone")
def test_a_salt_is_the_first_blocks_alone_and_goes_on_through_the_chain(vllm: Any, name: str) -> None:
    tokens = list(range(3 * BLOCK))
    plain, salted = Request("r", tokens), Request("r", tokens, cache_salt="s")
    hasher = make_hasher(vllm, name)
    assert not set(hasher(plain)) & set(hasher(salted))
    # The hash of the first block replaces the salt: later blocks depend on the salt only through their
    # parent's hash.
    salted.block_hashes = hasher(plain)[:1]
    assert hasher(salted) == hasher(plain)[1:]


def copy_of(text: str) -> str:
    """Returns an equal string that is another object."""
    copied = "".join([text[:1], text[1:]])
    assert copied is not text
    return copied


@pytest.mark.usefixtures("alone")
def test_one_string_twice_and_two_equal_strings_are_what_pickle_makes_of_them(vllm: Any, name: str) -> None:
    text = copy_of("an adapter")
    one = Request("r", list(range(2 * BLOCK)), lora_request=Lora(text, text))
    two = Request("r", list(range(2 * BLOCK)), lora_request=Lora(text, copy_of(text)))
    hasher = make_hasher(vllm, name)
    assert hasher(one) == expected(name, one)
    assert hasher(two) == expected(name, two)
    # If an object occurs twice, pickle writes a reference the second time. CBOR has no references, so
    # its hashes are equal.
    assert (hasher(one) == hasher(two)) is name.endswith("cbor")


@pytest.mark.usefixtures("alone")
def test_a_tag_that_is_one_object_everywhere_is_what_pickle_makes_of_it(vllm: Any, name: str) -> None:
    identifier = copy_of("image")
    request = Request("r", list(range(2 * BLOCK)), mm_features=[(identifier, 0, 2), (identifier, 2, 6)])
    assert make_hasher(vllm, name)(request) == expected(name, request)


@pytest.mark.parametrize(
    "value", [2**70, -(2**70), 1.5, True, ("a",), b"\xff", 2**63 - 1, -(2**63), 2**63, -1, 2**31]
)
def test_whatever_is_in_an_extra_key_is_hashed_as_vllm_hashes_it(vllm: Any, value: object, name: str) -> None:
    if isinstance(value, float | bool) or (isinstance(value, int) and abs(value) > 2**64):
        name = name.removesuffix("_cbor")  # the encoder above supports none of these values
    request = Request("r", list(range(2 * BLOCK)), mm_features=[(value, 0, 2 * BLOCK)])
    assert make_hasher(vllm, name)(request) == expected(name, request)


@pytest.mark.parametrize(
    "odd",
    [-1, 2**32, 2**70, True, np.int64(5), np.int32(5)],
    ids=["negative", "33 bits", "huge", "bool", "i64", "i32"],
)
@pytest.mark.parametrize("salt", [None, "s"])
@pytest.mark.parametrize("name", ["sha256", "xxhash"])
def test_a_token_that_is_no_32_bit_number_is_vllms_to_hash(
    vllm: Any, odd: Any, salt: str | None, name: str
) -> None:
    """The pickle of a bool or of a numpy integer differs from that of an int, so vLLM's own hash
    function has to be used.
    """
    asked: list[tuple[Any, ...]] = []
    utils = vllm.v1.core.kv_cache_utils
    stock = utils.hash_block_tokens

    def hash_block_tokens(hash_fn: Any, parent: Any, tokens: Any, extra: Any) -> bytes:
        asked.append((tuple(tokens), extra))
        return bytes(stock(hash_fn, parent, tokens, extra))

    tokens = [1, 2, 3, 4, 5, odd, 7, 8, 9, 10, 11, 12]
    request = Request("r", tokens, cache_salt=salt)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "hash_block_tokens", hash_block_tokens)
        assert make_hasher(vllm, name)(request) == expected(name, request)
    assert ((5, odd, 7, 8), None) in asked


@pytest.mark.usefixtures("alone")
def test_without_a_full_block_nothing_but_the_counts_is_read(vllm: Any) -> None:
    class Counts:
        block_hashes = (b"x" * 32,)
        _all_token_ids = [0] * (2 * BLOCK - 1)

    assert make_hasher(vllm, "sha256")(Counts()) == []
    Counts._all_token_ids.append(0)
    with pytest.raises(AttributeError, match="mm_features"):
        make_hasher(vllm, "sha256")(Counts())


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "broken",
    [
        Request("r", list(range(2 * BLOCK)), block_hashes=["no bytes"]),
        Request("r", tuple(range(BLOCK))),  # type: ignore[arg-type]
        Request("r", list(range(BLOCK)), block_hashes=None),
    ],
    ids=["hashes that are no bytes", "tokens that are no list", "no hashes"],
)
def test_a_request_that_is_none_is_refused_and_left_as_it_is(vllm: Any, broken: Request) -> None:
    before = None if broken.block_hashes is None else list(broken.block_hashes)
    with pytest.raises(TypeError):
        make_hasher(vllm, "sha256")(broken)
    assert broken.block_hashes == before


@pytest.mark.usefixtures("alone")
def test_the_first_parent_is_read_at_each_call(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hasher, request = make_hasher(vllm, "sha256"), Request("r", [1, 2, 3, 4])
    assert hasher(request) == expected("sha256", request)
    monkeypatch.setattr(vllm.v1.core.kv_cache_utils, "NONE_HASH", b"another seed")
    assert hasher(request) == [ORACLES["sha256"]((b"another seed", (1, 2, 3, 4), None))]


@pytest.mark.usefixtures("alone")
def test_hashing_in_a_thread_leaves_the_main_thread_running_and_both_right(vllm: Any) -> None:
    """As in vLLM, the input thread hashes new prompts while the scheduler's thread appends tokens to
    running requests.
    """
    hasher = make_hasher(vllm, "sha256", 16)
    long = Request("long", list(range(64_000)))
    wanted = expected("sha256", long, 16)
    found: list[list[bytes]] = []
    thread = threading.Thread(target=lambda: found.extend(hasher(long) for _ in range(5)))
    running = Request("running", [])
    thread.start()
    while thread.is_alive() or running.num_tokens < 64:
        running._all_token_ids.append(running.num_tokens)
        running.block_hashes += hasher(running)
    thread.join()
    assert found == [wanted] * 5
    assert running.block_hashes == expected("sha256", running, 16)


def test_what_is_no_hash_function_of_vllms_is_vllms_to_hash_with(vllm: Any) -> None:
    get = part("hashing").get_request_block_hasher

    def other(value: Any) -> bytes:
        raise NotAskedError

    assert get(16, other) == ("stock", 16, other)
    sha256 = vllm.utils.hashing.sha256
    assert get(16, sha256, 4) == ("stock", 16, sha256, 4)
    assert type(get(16, sha256, 0)) is _core.vllm.VllmHasher


@pytest.mark.parametrize(
    ("algorithm", "block_size", "error"),
    [
        ("no such", 16, errors.InvalidArgumentError),
        ("blake3", 16, errors.HashingError),
        ("xxh3", 16, errors.HashingError),
        ("vllm-sha256", 0, errors.HashingError),
    ],
)
def test_a_hasher_that_cannot_be_vllms_is_refused(
    vllm: Any, algorithm: str, block_size: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        _core.vllm.VllmHasher(algorithm, block_size, vllm.v1.core.kv_cache_utils, None)
