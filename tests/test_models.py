"""Tests shapes of KV caches: their bytes equal products that were computed by hand, models are found by
name, groups have blocks of equal size, and a request needs the right number of blocks.
"""

from __future__ import annotations

import dataclasses
import doctest
import importlib
from typing import Any

import pytest

import kvpool
from kvpool.models import KvGroups, KvShape, Layers, kv_shape, model_names
from kvpool.models.layers import attention, gated_delta_net, latent, mamba1, mamba2, short_convolution


@pytest.mark.parametrize(
    ("name", "kib_per_token"),
    [
        ("Llama-3.1-8B", 128),
        ("Llama-3.1-70B", 320),
        ("Llama-3.1-405B", 504),
        ("Llama-2-7B", 512),
        ("Mistral-7B", 128),
        ("Mixtral-8x7B", 128),
        ("Qwen2.5-7B", 56),
        ("Qwen2.5-72B", 320),
        ("Qwen3-0.6B", 112),
        ("Qwen3-8B", 144),
        ("Qwen3-32B", 256),
        ("Qwen3-30B-A3B", 96),
        ("Qwen3-235B-A22B", 188),
        ("DeepSeek-V3", 68.625),
        ("DeepSeek-R1", 68.625),
        ("GPT-2", 36),
        ("OPT-125m", 36),
        ("Gemma-2-9B", 336),
    ],
)
def test_published_sizes(name: str, kib_per_token: float) -> None:
    assert kv_shape(name).bytes_per_token == kib_per_token * 1024


@pytest.mark.parametrize(
    ("name", "token_bytes", "state_bytes"),
    [
        # The products are: layers, 2 (key and value), heads, elements per head, bytes per element.
        ("Llama-4-Scout", (12 + 36) * 2 * 8 * 128 * 2, 0),
        ("Llama-4-Maverick", 48 * 2 * 8 * 128 * 2, 0),
        ("Mistral-7B-v0.1", 32 * 2 * 8 * 128 * 2, 0),
        ("gpt-oss-20b", (12 + 12) * 2 * 8 * 64 * 2, 0),
        ("gpt-oss-120b", (18 + 18) * 2 * 8 * 64 * 2, 0),
        ("Gemma-2-27B", 46 * 2 * 16 * 128 * 2, 0),
        ("Gemma-3-1B", (4 + 22) * 2 * 1 * 256 * 2, 0),
        ("Gemma-3-4B", (5 + 29) * 2 * 4 * 256 * 2, 0),
        ("Gemma-3-12B", (8 + 40) * 2 * 8 * 256 * 2, 0),
        ("Gemma-3-27B", (10 + 52) * 2 * 16 * 128 * 2, 0),
        # Full attention has 2 heads of 512 elements, and windows have 8 heads of 256.
        ("Gemma-4-26B-A4B", 5 * 2 * 2 * 512 * 2 + 25 * 2 * 8 * 256 * 2, 0),
        ("Gemma-4-31B", 10 * 2 * 4 * 512 * 2 + 50 * 2 * 16 * 256 * 2, 0),
        ("GLM-4.5", 92 * 2 * 8 * 128 * 2, 0),
        ("GLM-4.5-Air", 46 * 2 * 8 * 128 * 2, 0),
        ("GLM-4.6", 92 * 2 * 8 * 128 * 2, 0),
        # Each layer has a latent of 512 elements, and 64 elements for the position. Sparse attention
        # adds 128 bytes of fp8 and a scale of 4 bytes.
        ("DeepSeek-V3.1", 61 * (512 + 64) * 2, 0),
        ("DeepSeek-V3.2", 61 * ((512 + 64) * 2 + 128 + 4), 0),
        ("GLM-5", 78 * ((512 + 64) * 2 + 128 + 4), 0),
        ("Kimi-K2", 61 * (512 + 64) * 2, 0),
        ("GLM-4.7-Flash", 47 * (512 + 64) * 2, 0),
        ("MiniMax-M2", 62 * 2 * 8 * 128 * 2, 0),
        ("Qwen3-Coder-480B-A35B", 62 * 2 * 8 * 128 * 2, 0),
        ("Mistral-Small-3.2-24B", 40 * 2 * 8 * 128 * 2, 0),
        # Full attention has 2 heads of 256. A recurrent state has 3 tokens of 16 keys, 16 queries and
        # 32 values, of 128 elements each, and 32 matrices.
        (
            "Qwen3-Next-80B-A3B",
            12 * 2 * 2 * 256 * 2,
            36 * (3 * (16 * 128 + 16 * 128 + 32 * 128) * 2 + 32 * 128 * 128 * 2),
        ),
        # In this model, the matrices of the recurrent states are in fp32.
        ("Qwen3.5-27B", 16 * 2 * 4 * 256 * 2, 48 * (3 * (2 * 16 + 48) * 128 * 2 + 48 * 128 * 128 * 4)),
        ("Qwen3.5-35B-A3B", 10 * 2 * 2 * 256 * 2, 30 * (3 * (2 * 16 + 32) * 128 * 2 + 32 * 128 * 128 * 4)),
        ("Qwen3-Coder-Next", 12 * 2 * 2 * 256 * 2, 36 * (3 * (2 * 16 + 32) * 128 * 2 + 32 * 128 * 128 * 2)),
        ("Qwen3.5-4B", 8 * 2 * 4 * 256 * 2, 24 * (3 * (2 * 16 + 32) * 128 * 2 + 32 * 128 * 128 * 4)),
        ("Qwen3.5-397B-A17B", 15 * 2 * 2 * 256 * 2, 45 * (3 * (2 * 16 + 64) * 128 * 2 + 64 * 128 * 128 * 4)),
        ("Qwen3.6-27B", 16 * 2 * 4 * 256 * 2, 48 * (3 * (2 * 16 + 48) * 128 * 2 + 48 * 128 * 128 * 4)),
        ("Qwen3.6-35B-A3B", 10 * 2 * 2 * 256 * 2, 30 * (3 * (2 * 16 + 32) * 128 * 2 + 32 * 128 * 128 * 4)),
        # A state has three convolutions over 32 heads of 128, and 32 matrices in fp32.
        ("Kimi-Linear-48B-A3B", 7 * (512 + 64) * 2, 20 * (3 * 3 * 32 * 128 * 2 + 32 * 128 * 128 * 4)),
        # A state of Mamba-2 has 3 tokens of inputs and of 2 x 8 groups of 128, and 128 heads of 64 x
        # 128 elements in fp32.
        ("Nemotron-H-8B", 4 * 2 * 8 * 128 * 2, 24 * (3 * (128 * 64 + 2 * 8 * 128) * 2 + 128 * 64 * 128 * 4)),
        (
            "Nemotron-Nano-9B-v2",
            4 * 2 * 8 * 128 * 2,
            27 * (3 * (128 * 80 + 2 * 8 * 128) * 2 + 128 * 80 * 128 * 4),
        ),
        (
            "Nemotron-3-Nano-30B-A3B",
            6 * 2 * 2 * 128 * 2,
            23 * (3 * (64 * 64 + 2 * 8 * 128) * 2 + 64 * 64 * 128 * 4),
        ),
        (
            "Granite-4.0-H-Small",
            4 * 2 * 8 * 128 * 2,
            36 * (3 * (128 * 64 + 2 * 128) * 2 + 128 * 64 * 128 * 2),
        ),
    ],
)
def test_bytes_by_hand(name: str, token_bytes: int, state_bytes: int) -> None:
    shape = kv_shape(name)
    assert (shape.bytes_per_token, shape.bytes_per_state) == (token_bytes, state_bytes)


def test_every_model_that_is_no_uniform_attention_is_calculated_by_hand() -> None:
    (marks,) = (
        m
        for m in test_bytes_by_hand.pytestmark  # type: ignore[attr-defined]
        if m.name == "parametrize"
    )
    by_hand = {case[0] for case in marks.args[1]}
    rest = set(model_names()) - by_hand - {"Gemma-2-2B", "Gemma-2-9B"}
    assert all(len(kv_shape(name).layers) == 1 and kv_shape(name).layers[0].kind == "full" for name in rest)


def test_fp8_halves_tokens_and_leaves_states_and_indexes_alone() -> None:
    sparse, hybrid = kv_shape("DeepSeek-V3.2", "fp8"), kv_shape("Qwen3-Next-80B-A3B", "fp8")
    assert sparse.bytes_per_token == 61 * (512 + 64 + 128 + 4)
    assert hybrid.bytes_per_token == 12 * 2 * 2 * 256
    assert hybrid.bytes_per_state == kv_shape("Qwen3-Next-80B-A3B").bytes_per_state
    # Tokens are half as large, but states are not. So a block that holds a state needs twice as many
    # tokens.
    assert [g.block_tokens for g in hybrid.groups().groups] == [1072] * 4


def layout(groups: KvGroups) -> list[tuple[str, int, int]]:
    return [(group.in_words(), group.layers, group.block_tokens) for group in groups.groups]


def test_layers_that_are_all_alike_are_one_group() -> None:
    for name in ("Llama-3.1-8B", "DeepSeek-V3.2", "Mistral-7B-v0.1"):
        shape = kv_shape(name)
        groups = shape.groups(16)
        assert len(groups.groups) == 1
        assert groups.block_bytes == 16 * shape.bytes_per_token == groups.groups[0].used_bytes
    # Layers of full attention with different widths are one group, because every layer reads every
    # block.
    both = KvShape("both", (attention(3, 8, 128), latent(2, 512, 64)))
    assert layout(both.groups(32)) == [("full", 5, 32)]
    assert both.groups(32).block_bytes == 32 * (3 * 2 * 8 * 128 * 2 + 2 * 576 * 2)


def test_groups_have_equally_many_layers_and_the_last_ones_are_padded() -> None:
    groups = kv_shape("Gemma-3-27B").groups(16)
    # The 52 window layers are divided into six groups of at most 10: four of 9 and two of 8.
    assert layout(groups) == [
        ("full", 10, 16),
        *[("sliding 1,024", 9, 16)] * 4,
        *[("sliding 1,024", 8, 16)] * 2,
    ]
    assert groups.block_bytes == 10 * 16 * 2 * 16 * 128 * 2
    assert [round(groups.padding(group), 9) for group in groups.groups] == [0, 0.1, 0.1, 0.1, 0.1, 0.2, 0.2]
    assert layout(kv_shape("gpt-oss-20b").groups(16)) == [("full", 12, 16), ("sliding 128", 12, 16)]
    assert layout(kv_shape("Llama-4-Scout").groups(16)) == [
        ("full", 12, 16),
        *[("chunked 8,192", 12, 16)] * 3,
    ]


@pytest.mark.parametrize(
    ("full", "sliding", "sizes"),
    # Layers are divided into groups of equal size. The size is the larger one of the two numbers of
    # layers if it is below 1.5 times the smaller one. Otherwise it is the smaller one.
    [
        (10, 14, [10, 14]),
        (10, 15, [10, 8, 7]),
        (13, 12, [13, 12]),
        (20, 30, [20, 15, 15]),
        (1, 3, [1, 1, 1, 1]),
    ],
)
def test_kinds_of_nearly_equal_numbers_share_a_size(full: int, sliding: int, sizes: list[int]) -> None:
    shape = KvShape("mine", (attention(full, 1, 64), attention(sliding, 1, 64, window=128)))
    groups = shape.groups(16)
    assert [group.layers for group in groups.groups] == sizes
    assert groups.block_bytes == max(sizes) * 16 * 2 * 64 * 2


def test_layers_that_keep_less_per_token_have_longer_blocks() -> None:
    groups = kv_shape("Gemma-4-31B").groups(16)
    # In full attention, 4 heads of 512 are half as large as the windows' 16 heads of 256. So its blocks
    # have twice as many tokens.
    assert layout(groups) == [("full", 10, 32), *[("sliding 1,024", 10, 16)] * 5]
    assert all(groups.padding(group) == 0 for group in groups.groups)
    # 3 heads are three fifths of 5 heads. That is not one part of a whole number, so the smaller block
    # is padded.
    odd = KvShape("odd", (attention(2, 3, 64), attention(2, 5, 64, window=128))).groups(16)
    assert layout(odd) == [("full", 2, 16), ("sliding 128", 2, 16)]
    assert odd.padding(odd.groups[0]) == pytest.approx(0.4)
    assert odd.padding(odd.groups[1]) == 0


def test_blocks_grow_until_they_hold_a_state() -> None:
    shape = kv_shape("Qwen3-Next-80B-A3B")
    groups = shape.groups(16)
    # A state takes 1,097,728 bytes, and a token takes 2,048 bytes in a layer. So a block has 536
    # tokens, rounded up to a multiple of 16.
    state = 3 * 8192 * 2 + 32 * 128 * 128 * 2
    assert state == 1_097_728
    assert 33 * 16 * 2048 < state <= 34 * 16 * 2048
    assert layout(groups) == [("full", 12, 34 * 16), *[("state", 12, 34 * 16)] * 3]
    assert groups.block_bytes == 12 * 544 * 2048
    assert groups.padding(groups.groups[1]) == pytest.approx(1 - state / (544 * 2048))
    assert shape.groups(400).groups[0].block_tokens == 800
    assert shape.groups(1024).groups[0].block_tokens == 1024
    # If the caller's blocks are long enough for a state, they keep their length. If all layers have
    # states, a block has exactly the size of a state.
    pure = KvShape("pure", (mamba1(4, inner=8, state=2),))
    assert pure.groups(16).block_bytes == 4 * (3 * 8 + 8 * 2) * 2
    two = KvShape("two", (mamba1(4, inner=8, state=2), short_convolution(4, channels=8, kernel=3)))
    assert two.groups(16).block_bytes == 4 * (3 * 8 + 8 * 2) * 2
    assert [group.used_bytes for group in two.groups(16).groups] == [320, 4 * 2 * 8 * 2]


def held(kind: str, span: int, block: int, tokens: int, chunk: int) -> int:
    """Counts step by step how many blocks a request holds if each step computes at most ``chunk``
    tokens. Returns the largest number of blocks that a step reads or writes.
    """

    def first(position: int) -> int:
        return {
            "full": 0,
            "sliding": max(0, position - span + 1),
            "chunked": position - position % max(1, span),
        }[kind]

    if kind == "state":
        return min(tokens, 1)  # the state after the last token
    steps = ((start, min(start + chunk, tokens)) for start in range(tokens))
    return max((len({at // block for at in range(first(start), end)}) for start, end in steps), default=0)


KEPT = [
    ("full", 0),
    ("sliding", 7),
    ("sliding", 1),
    ("sliding", 16),
    ("chunked", 8),
    ("chunked", 5),
    ("state", 0),
]


@pytest.mark.parametrize("block", [1, 3, 4, 16])
@pytest.mark.parametrize(("kind", "span"), KEPT)
def test_a_request_takes_what_its_steps_read_and_write(kind: Any, span: int, block: int) -> None:
    kept = Layers(kind, 1, state_bytes=64) if kind == "state" else Layers(kind, 1, elements=1, span=span)
    (group,) = KvShape("mine", (kept,)).groups(block).groups
    for chunk in (1, 2, 5, 8, 30):
        for tokens in range(60):
            assert group.blocks(tokens, chunk) == held(kind, span, block, tokens, chunk), (tokens, chunk)
        # Except in full attention, the number of blocks is bounded, so more tokens do not change it.
        assert kind == "full" or group.blocks(10**6, chunk) == group.blocks(10**3, chunk)
    assert group.blocks(60) == -(-60 // block) or kind == "state"


def specs_of(groups: KvGroups) -> list[kvpool.GroupSpec]:
    names = {"sliding": "window", "chunked": "chunk"}
    spans: list[dict[str, Any]] = [{names[one.kind]: one.span} if one.span else {} for one in groups.groups]
    return [
        kvpool.GroupSpec(group.kind, group.block_tokens, **span)
        for group, span in zip(groups.groups, spans, strict=True)
    ]


SERVED = [
    KvShape("windows", (attention(2, 1, 8), attention(6, 1, 8, window=50))),
    KvShape("chunks", (attention(2, 1, 8), attention(2, 1, 8, chunk=40))),
    KvShape("both", (attention(2, 1, 8), attention(2, 1, 8, window=7), attention(2, 1, 8, chunk=24))),
    KvShape("states", (attention(2, 4, 64), mamba1(2, inner=64, state=16))),
]


@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 1000])
@pytest.mark.parametrize("shape", SERVED, ids=[shape.name for shape in SERVED])
def test_a_manager_serves_the_longest_request_in_the_blocks_that_it_is_said_to_take(
    shape: KvShape, chunk: int
) -> None:
    groups = shape.groups(16)
    blocks = 60
    longest = groups.longest_in(blocks, chunk)
    assert longest
    assert (
        sum(groups.request_blocks(longest, chunk)) <= blocks < sum(groups.request_blocks(longest + 1, chunk))
    )
    unit = groups.block_tokens
    manager = kvpool.CacheManager(num_blocks=1 + blocks, block_size=unit, groups=specs_of(groups))
    # The first step computes fewer tokens than the others, as if other requests decoded in the same batch.
    # The last tokens are decoded, one per step.
    manager.admit("x", range(longest), allocate_tokens=0)
    ends = [*range(min(3, chunk), longest - 20, chunk), *range(max(1, longest - 20), longest + 1)]
    for end in ends:
        manager.extend("x", end)
        manager.commit("x", end)
        manager.take_plan()
    assert manager.request("x").computed_tokens == longest


def test_windows_and_states_make_room_for_more_requests() -> None:
    gemma = kv_shape("Gemma-3-27B").groups(16)
    # Blocks have 16 tokens. So 32,000 tokens need 2,000 blocks of full attention, and 64 + 1 blocks of each
    # window of 1,024. While a chunk of 8,192 tokens is computed, each window needs 512 more.
    assert gemma.request_blocks(32_000, 1) == [2000, 65, 65, 65, 65, 65, 65]
    assert gemma.request_blocks(32_000) == gemma.request_blocks(32_000, 8192) == [2000, *[577] * 6]
    assert gemma.request_bytes(32_000) == (2000 + 6 * 577) * gemma.block_bytes
    assert gemma.blocks_in(60) == 60 * 2**30 // (10 * 16 * 8192) == 49_152
    # The formula assumes that one request computes its prompt while the others decode.
    assert gemma.requests_in(49_152, 32_000, 1) == 49_152 // 2390 == 20
    assert gemma.requests_in(49_152, 32_000) == 1 + (49_152 - 5462) // 2390 == 19
    assert gemma.requests_in(5462, 32_000) == 1
    assert gemma.requests_in(5461, 32_000) == 0
    assert gemma.longest_in(49_152) == (49_152 - 6 * 577) * 16
    next_model = kv_shape("Qwen3-Next-80B-A3B").groups(16)
    assert next_model.request_blocks(32_000) == [59, 1, 1, 1]
    assert next_model.longest_in(3) == 0
    assert next_model.longest_in(4) == 544
    window = kv_shape("Mistral-7B-v0.1").groups(16)
    assert window.longest_in(257, 1) is None
    assert window.longest_in(256, 1) == 256 * 16
    assert window.longest_in(256 + 512 + 1) is None
    assert window.longest_in(256 + 512) == (256 + 512) * 16


def test_blocks_scale_with_tokens_and_memory() -> None:
    llama = kv_shape("Llama-3.1-8B")
    assert llama.bytes_per_block(16) == 2 * 2**20
    assert llama.bytes_per_block(512) == 64 * 2**20
    assert llama.blocks_in(60, 16) == 30 * 1024
    assert llama.blocks_in(60, 512) == 960
    # A block that does not fit completely into the memory does not count.
    assert llama.blocks_in(2 / 1024, 16) == 1
    assert llama.blocks_in(1.999 / 1024, 16) == 0
    assert llama.blocks_in(0, 16) == 0


@pytest.mark.parametrize(
    ("dtype", "dtype_bytes"),
    [("bf16", 2), ("fp16", 2), ("fp8", 1), ("fp32", 4), ("int8", 1), ("BF16", 2), ("fp8_e4m3", 1), (None, 2)],
)
def test_dtypes(dtype: str | None, dtype_bytes: int) -> None:
    assert kv_shape("Qwen3-8B", dtype).bytes_per_token == 72 * 1024 * dtype_bytes


@pytest.mark.parametrize(
    ("name", "dtype", "token_bytes"),
    [
        # An element has 4 bits, and each 16 elements have a scale in fp8.
        ("Llama-3.1-8B", "nvfp4", 32 * 2 * 8 * (128 // 2 + 128 // 16)),
        ("Gemma-3-27B", "NVFP4", 62 * 2 * 16 * (128 // 2 + 128 // 16)),
        # Each vector has 4 bytes for its scale and its zero point.
        ("Llama-3.1-8B", "int4", 32 * 2 * 8 * (128 // 2 + 4)),
        ("Llama-3.1-8B", "int4_per_token_head", 32 * 2 * 8 * (128 // 2 + 4)),
        ("Llama-3.1-8B", "int8_per_token_head", 32 * 2 * 8 * (128 + 4)),
        ("Llama-3.1-8B", "fp8_per_token_head", 32 * 2 * 8 * (128 + 4)),
        # MLA has a single vector per token, for which vLLM stores two scales.
        ("DeepSeek-V3", "fp8_per_token_head", 61 * (576 + 2 * 4)),
        ("DeepSeek-V3", "fp8", 61 * 576),
        # The index of sparse attention has fp8 elements and a scale, whatever the format of the cache
        # is.
        ("DeepSeek-V3.2", "fp8", 61 * (576 + 132)),
        ("DeepSeek-V3.2", "fp8_ds_mla", 61 * (512 + 4 * 4 + 64 * 2 + 132)),
        ("DeepSeek-V3.2", "nvfp4_ds_mla", 61 * (512 // 2 + 512 // 16 + 64 + 132)),
    ],
)
def test_formats_with_scales_in_the_cache(name: str, dtype: str, token_bytes: int) -> None:
    shape = kv_shape(name, dtype)
    assert shape.bytes_per_token == token_bytes
    # The format also applies to groups, blocks and requests. States have a dtype of their own.
    assert shape.groups(16).block_bytes % 16 == 0
    assert sum(group.used_bytes // group.block_tokens for group in shape.groups(16).groups) == token_bytes
    assert shape.with_dtype("bf16") == kv_shape(name)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("DeepSeek-V3", "nvfp4"),
        ("DeepSeek-V3", "fp8_ds_mla"),  # no sparse attention
        ("Llama-3.1-8B", "fp8_ds_mla"),
        ("Llama-3.1-8B", "nvfp4_ds_mla"),
        ("Kimi-Linear-48B-A3B", "nvfp4"),
    ],
)
def test_formats_that_a_model_cannot_have_are_refused(name: str, dtype: str) -> None:
    with pytest.raises(ValueError, match=f"dtype is '{dtype}', a format of .*; the model has "):
        kv_shape(name, dtype)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("LLAMA-3.1-8b", "Llama-3.1-8B"),
        (" llama_3.1_8b ", "Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("meta-llama/Llama-2-7b-chat-hf", "Llama-2-7B"),
        ("google/gemma-2-9b-it", "Gemma-2-9B"),
        ("openai-community/gpt2", "GPT-2"),
        ("facebook/opt-125m", "OPT-125m"),
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-R1"),
    ],
)
def test_names_are_found_as_people_write_them(written: str, name: str) -> None:
    assert kv_shape(written).name == name


def test_every_listed_name_is_found_and_unique() -> None:
    names = model_names()
    assert len(names) == len(set(names)) >= 16
    for name in names:
        assert kv_shape(name).name == name
        assert kv_shape(name.upper()) == kv_shape(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Qwen3-30B", "unknown model 'Qwen3-30B'; did you mean .*Qwen3-30B-A3B"),
        ("deepseek-v4", "did you mean .*DeepSeek-V"),
        ("", "unknown model ''; see kvpool.models.model_names"),
        ("zzzzzzzzzz", "see kvpool.models.model_names"),
    ],
)
def test_unknown_models_get_suggestions(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kv_shape(name)


def test_bad_arguments_are_value_errors() -> None:
    with pytest.raises(
        ValueError, match=r"unknown dtype 'int3'; allowed: fp32, .*int8, .*nvfp4, .*fp8_ds_mla"
    ):
        kv_shape("Qwen3-8B", "int3")
    with pytest.raises(ValueError, match="unknown model None"):
        kv_shape(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown dtype 2"):
        kv_shape("Qwen3-8B", 2)  # type: ignore[arg-type]
    shape = kv_shape("Qwen3-8B")
    for block_size in (0, -16, True, 16.0):
        with pytest.raises(ValueError, match=r"block_size is .*; allowed: a whole number, 1 or more"):
            shape.bytes_per_block(block_size)  # type: ignore[arg-type]
    for gib in (-1, float("nan"), float("inf"), True, "60"):
        with pytest.raises(ValueError, match=r"gib is .*; allowed: a number, 0 or more"):
            shape.blocks_in(gib, 16)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tokens is -1"):
        shape.groups().request_blocks(-1)
    with pytest.raises(ValueError, match="tokens is 0"):
        shape.groups().requests_in(10, 0)
    with pytest.raises(ValueError, match="blocks is -1"):
        shape.groups().longest_in(-1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KvShape("mine", ()), r"layers is \(\)"),
        (lambda: KvShape("mine", (1,)), r"layers is \(1,\)"),  # type: ignore[arg-type]
        (lambda: KvShape("mine", (attention(1, 1, 1),), "bf17"), "unknown dtype 'bf17'"),
        (lambda: KvShape("mine", (attention(1, 1, 8),), "nvfp4"), "a multiple of 16; the model has 1 x 8"),
        (lambda: KvShape("mine", (attention(1, 1, 3),), "int4"), "packs two elements in a byte"),
        (lambda: KvShape("mine", (Layers("full", 1, elements=32),), "int4"), "no length of a vector"),
        (lambda: KvShape.of_heads("mine", 0, 1, 1), "layers is 0"),
        (lambda: KvShape.of_heads("mine", 1, 0, 1), "kv_heads is 0"),
        (lambda: KvShape.of_heads("mine", 1, 1, 0), "head_dim is 0"),
        (lambda: attention(0, 1, 1), "count is 0"),
        (lambda: attention(1, 1, 1, value_dim=0), "value_dim is 0"),
        (lambda: attention(1, 1, 1, window=-1), "span is -1"),
        (lambda: latent(1, 0, 64), "latent_dim is 0"),
        (lambda: latent(1, 1, -1), "rope is -1"),
        (lambda: mamba2(1, heads=0, head_dim=1, groups=1, state=1, kernel=1), "heads is 0"),
        (
            lambda: gated_delta_net(1, key_heads=1, value_heads=-1, key_dim=1, value_dim=1),
            "value_heads is -1",
        ),
        (lambda: short_convolution(1, channels=4, kernel=1), "state_bytes is 0"),
        (lambda: Layers("whole", 1), "kind is 'whole'"),  # type: ignore[arg-type]
        (lambda: Layers("sliding", 1, elements=2), "span is 0"),
    ],
)
def test_layers_out_of_range_are_value_errors(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_shapes_are_frozen_and_hashable() -> None:
    shape = KvShape.of_heads("mine", 2, 4, 64)
    with pytest.raises(dataclasses.FrozenInstanceError):
        shape.dtype = "fp8"  # type: ignore[misc]
    assert len({shape, KvShape.of_heads("mine", 2, 4, 64)}) == 1
    assert dataclasses.replace(shape, layers=(latent(2, 512, 64),)).bytes_per_token == 2 * 576 * 2


def test_examples_in_the_documentation() -> None:
    names = ["", ".catalogue", ".config", ".fields", ".groups", ".layers", ".shape"]
    results = [doctest.testmod(importlib.import_module(f"kvpool.models{name}")) for name in names]
    assert sum(result.attempted for result in results) >= 25
    assert [result.failed for result in results] == [0] * len(names)
