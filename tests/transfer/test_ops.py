"""Tests the torch ops: their schemas, results, compiled code, and refused calls. Also tests that stores
are cached by the geometry of their tensors.
"""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode
from torch.library import opcheck

import kvpool
from kvpool import errors
from kvpool.transfer import BlockStore, ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPS = torch.ops.kvpool
NAMES = ["copy_blocks", "swap_blocks", "swap_blocks.vllm", "copy_blocks_by_handle"]
MAPPING = torch.tensor([[0, 4], [5, 1], [2, 3]])


def kv(seed: int, layers: int = 2) -> list[torch.Tensor]:
    """Returns tensors of six blocks with three tokens each. K and V are in dimension 0, and blocks are
    dimension 1.
    """
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 6, 3, 4, generator=generator) for _ in range(layers)]


def pages(seed: int, layers: int = 2) -> list[torch.Tensor]:
    """Returns the same pieces with blocks in dimension 0. There are unused bytes after K and V."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(6, 2, 5, 4, generator=generator)[:, :, :3] for _ in range(layers)]


def rows(seed: int) -> torch.Tensor:
    """Returns six blocks of 16 bytes."""
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))


def copied(
    src: list[torch.Tensor],
    dst: list[torch.Tensor],
    mapping: torch.Tensor,
    src_dim: int = 0,
    dst_dim: int = 0,
) -> list[torch.Tensor]:
    """Returns ``dst`` after the copy, computed by indexing."""
    wanted = [tensor.detach().clone() for tensor in dst]
    read, written = mapping.unbind(1)
    for source, target in zip(src, wanted, strict=True):
        target.movedim(dst_dim, 0)[written] = source.detach().movedim(src_dim, 0)[read]
    return wanted


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


class Handles:
    """The handles of two stores of six blocks each, and the tensors of these stores."""

    def __init__(self) -> None:
        self.src, self.dst = rows(1), rows(2)
        self.stores = [BlockStore.from_tensors([tensor]) for tensor in (self.src, self.dst)]
        self.pair = (self.stores[0].handle, self.stores[1].handle)


CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def calls(name: str, handles: Handles) -> tuple[Any, tuple[Any, ...], dict[str, int]]:
    """Returns valid arguments for an op."""
    if name == "copy_blocks":
        return OPS.copy_blocks.default, (kv(1), kv(2), MAPPING), {"block_dim": 1}
    if name == "swap_blocks":
        # Use tensors without unused bytes, because opcheck clones its arguments, and a clone has none.
        there = [tensor.unsqueeze(0) for tensor in kv(2)]
        return OPS.swap_blocks.default, (kv(1), there, MAPPING), {"src_block_dim": -3, "dst_block_dim": 2}
    if name == "swap_blocks.vllm":
        return OPS.swap_blocks.vllm, (rows(1), rows(2), 16, MAPPING), {}
    return OPS.copy_blocks_by_handle.default, (*handles.pair, MAPPING), {}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # opcheck reads it
@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "requires grad"])
@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name: str, requires_grad: bool) -> None:
    handles = Handles()
    op, args, kwargs = calls(name, handles)
    for source in args[0] if isinstance(args[0], list) else args[:1]:
        if requires_grad and isinstance(source, torch.Tensor):
            source.requires_grad_()
    assert opcheck(op, args, kwargs, test_utils=CHECKS) == dict.fromkeys(CHECKS, "SUCCESS")


@pytest.mark.parametrize("name", NAMES)
def test_every_device_has_its_kernel(name: str) -> None:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for key in ("CPU", "CUDA", "Meta"):
        assert has_kernel(f"kvpool::{name}", key)
    # The ops are not differentiable. So none of these dispatch keys may handle a call before the op
    # itself.
    for key in (
        "Autograd",
        "AutogradCPU",
        "AutogradCUDA",
        "CompositeImplicitAutograd",
        "CompositeExplicitAutograd",
    ):
        assert not has_kernel(f"kvpool::{name}", key)


def test_schemas() -> None:
    schemas = {
        "copy_blocks": "(Tensor[] src, Tensor(a!)[] dst, Tensor block_mapping, int block_dim=0) -> ()",
        "swap_blocks": "(Tensor[] src, Tensor(a!)[] dst, Tensor block_mapping, "
        "int src_block_dim=0, int dst_block_dim=0) -> ()",
        "swap_blocks.vllm": "(Tensor src, Tensor(a!) dst, int block_size_in_bytes, "
        "Tensor block_mapping) -> ()",
        "copy_blocks_by_handle": "(int src, int dst, Tensor block_mapping) -> ()",
    }
    found = [
        op._schema
        for op in (ops.copy_blocks, ops.swap_blocks, ops.swap_blocks_vllm, ops.copy_blocks_by_handle)
    ]
    assert [str(schema) for schema in found] == [f"kvpool::{name}{rest}" for name, rest in schemas.items()]
    written = [
        [one.name for one in schema.arguments if one.alias_info and one.alias_info.is_write]
        for schema in found
    ]
    assert written == [["dst"], ["dst"], ["dst"], []]


@pytest.mark.parametrize("dim", [1, -3])
def test_copy_blocks(dim: int) -> None:
    src, dst = kv(1), kv(2)
    wanted = copied(src, dst, MAPPING, dim, dim)
    assert OPS.copy_blocks(src, dst, MAPPING, dim) is None
    assert equal(dst, wanted)
    assert equal(src, kv(1))


def test_swap_blocks_between_layouts() -> None:
    src, dst = kv(1), pages(2)
    wanted = copied(src, dst, MAPPING, 1, 0)
    assert OPS.swap_blocks(src, dst, MAPPING, src_block_dim=1) is None
    assert equal(dst, wanted)
    back = kv(3)
    wanted = copied(dst, back, MAPPING.flip(1), 0, 1)
    ops.swap_blocks(dst, back, MAPPING.flip(1), 0, 1)
    assert equal(back, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.float8_e4m3fn])
def test_the_call_of_vllm(dtype: torch.dtype) -> None:
    """The arguments are positional, as in ``vllm._custom_ops.swap_blocks``. A block is a number of
    bytes, whatever the tensor's shape.
    """
    src = torch.arange(96, dtype=torch.uint8).view(dtype).reshape(2, -1)
    dst = torch.zeros_like(src)
    wanted = copied([src.view(torch.uint8).view(6, 16)], [dst.view(torch.uint8).view(6, 16)], MAPPING)
    assert OPS.swap_blocks(src, dst, 16, MAPPING) is None
    assert torch.equal(dst.view(torch.uint8).view(6, 16), wanted[0])
    OPS.swap_blocks(src=src, dst=dst, block_size_in_bytes=96, block_mapping=torch.tensor([[0, 0]]))
    assert torch.equal(dst.view(torch.uint8), src.view(torch.uint8))


def test_overloads() -> None:
    """Two lists of tensors are divided into blocks along a dimension, and two single tensors into
    blocks of bytes. Other combinations are refused.
    """
    assert OPS.swap_blocks.overloads() == ["default", "vllm"]
    one, other = rows(1), rows(2)
    OPS.swap_blocks([one], [other], torch.tensor([[0, 1]]))
    OPS.swap_blocks(one, other, 16, torch.tensor([[0, 2]]))
    assert torch.equal(other[1:3], one[:1].expand(2, 4))
    for args in (
        (one, other, MAPPING),
        ([one], other, MAPPING),
        ([one], [other], 16, MAPPING),
        (one, [other], MAPPING),
    ):
        with pytest.raises(RuntimeError, match="failed to match any schema"):
            OPS.swap_blocks(*args)


def test_copy_blocks_by_handle() -> None:
    handles = Handles()
    wanted = copied([handles.src], [handles.dst], MAPPING)
    assert OPS.copy_blocks_by_handle(*handles.pair, MAPPING) is None
    assert torch.equal(handles.dst, wanted[0])


MAPPINGS: dict[str, Callable[[], torch.Tensor]] = {
    "empty": lambda: torch.empty(0, 2, dtype=torch.int64),
    "one": lambda: torch.tensor([[3, 3]]),
    "transposed": lambda: torch.tensor([[0, 5, 2], [4, 1, 3]]).t(),
    "strided": lambda: (torch.arange(24) % 6).reshape(6, 4)[:3:2, ::3],
    "of numpy": lambda: torch.from_numpy(np.array([[1, 2], [2, 1]])),
    "expanded source": lambda: torch.stack([torch.tensor(3).expand(4), torch.arange(4)], 1),
}


@pytest.mark.parametrize("form", MAPPINGS)
def test_mappings(form: str) -> None:
    mapping, handles = MAPPINGS[form](), Handles()
    for call in (
        lambda: OPS.copy_blocks([handles.src], [handles.dst], mapping),
        lambda: OPS.swap_blocks([handles.src], [handles.dst], mapping),
        lambda: OPS.swap_blocks(handles.src, handles.dst, 16, mapping),
        lambda: OPS.copy_blocks_by_handle(*handles.pair, mapping),
    ):
        handles.dst.copy_(rows(2))
        call()
        assert torch.equal(handles.dst, copied([handles.src], [rows(2)], mapping)[0])


def test_copies_within_tensors() -> None:
    tensor = rows(1)
    wanted = copied([tensor], [tensor], MAPPING)
    OPS.copy_blocks([tensor], [tensor], MAPPING)
    assert torch.equal(tensor, wanted[0])


def test_tensors_without_memory() -> None:
    """With tensors on the meta device and with fake tensors, a call succeeds and moves nothing."""
    for name in NAMES:
        handles = Handles()
        op, args, kwargs = calls(name, handles)
        meta = [[t.to("meta") for t in one] if isinstance(one, list) else one for one in args]
        meta = [one.to("meta") if isinstance(one, torch.Tensor) else one for one in meta]
        assert op(*meta, **kwargs) is None
        with FakeTensorMode() as mode:
            fake: list[Any] = [
                [mode.from_tensor(t) for t in one] if isinstance(one, list) else one for one in args
            ]
            fake = [mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for one in fake]
            assert op(*fake, **kwargs) is None
        assert torch.equal(handles.dst, rows(2))


def test_inference_mode() -> None:
    outside = Handles()
    with torch.inference_mode():
        inside = Handles()
        for handles in (outside, inside):
            wanted = copied([handles.src], [handles.dst], MAPPING)
            OPS.copy_blocks([handles.src], [handles.dst], MAPPING)
            assert torch.equal(handles.dst, wanted[0])
            handles.dst.zero_()
            OPS.swap_blocks(handles.src, handles.dst, 16, MAPPING)
            handles.dst[0] = wanted[0][0]
            OPS.copy_blocks_by_handle(*handles.pair, MAPPING)
            assert torch.equal(handles.dst[[4, 1, 3]], handles.src[[0, 5, 2]])
    inside.dst.clone()
    OPS.copy_blocks([inside.src], [outside.dst], MAPPING)
    assert torch.equal(outside.dst[4], inside.src[0])


def test_tensors_that_require_grad() -> None:
    """Tensors that require gradients are copied like any other memory, and the copy has no gradient."""
    src, dst = rows(1).requires_grad_(), rows(2)
    wanted = copied([src], [dst], MAPPING)
    OPS.copy_blocks([src], [dst], MAPPING)
    assert torch.equal(dst, wanted[0])
    assert (dst.requires_grad, dst.grad_fn, src.requires_grad, src.grad) == (False, None, True, None)
    leaf = torch.nn.Parameter(rows(2))
    OPS.swap_blocks(src, leaf, 16, MAPPING)
    assert torch.equal(leaf.detach(), wanted[0])
    assert leaf.is_leaf


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(function: Callable[..., Any], *args: Any) -> Any:
    """Compiles the function as one graph and runs it. The compiler first replaces changes of tensors by
    new tensors, and later restores them.
    """
    backend = CompileCounterWithBackend("aot_eager")
    result = torch.compile(function, fullgraph=True, backend=backend)(*args)
    assert backend.frame_count == 1
    return result


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "requires grad"])
def test_compiled_copy_blocks(requires_grad: bool) -> None:
    """The op runs between two reads of the tensor that it writes."""
    weight = torch.full((), 2.0, requires_grad=requires_grad)

    def step(src: list[torch.Tensor], dst: list[torch.Tensor], mapping: torch.Tensor) -> list[torch.Tensor]:
        before = dst[0] * weight
        OPS.copy_blocks(src, dst, mapping, 1)
        return [before, dst[0] * weight, dst[1] + 1]

    src, dst = kv(1), kv(2)
    wanted = copied(src, dst, MAPPING, 1, 1)
    results = compiled(step, src, dst, MAPPING)
    assert equal(dst, wanted)
    assert equal(src, kv(1))
    assert equal(results, [kv(2)[0] * 2, wanted[0] * 2, wanted[1] + 1])


@pytest.mark.usefixtures("_fresh_compiler")
def test_compiled_swap_blocks() -> None:
    """The function swaps blocks out and in again. The second call reads what the first one has written."""

    def step(
        cache: list[torch.Tensor], host: list[torch.Tensor], out: torch.Tensor, back: torch.Tensor
    ) -> torch.Tensor:
        cache[0].add_(1)
        OPS.swap_blocks(cache, host, out, 1, 0)
        OPS.swap_blocks(host, cache, back, 0, 1)
        return cache[0].sum()

    cache, host, back = kv(1), pages(2), torch.tensor([[4, 2], [3, 0]])
    wanted = [kv(1)[0] + 1, kv(1)[1]]
    there = copied(wanted, host, MAPPING, 1, 0)
    wanted = copied(there, wanted, back, 0, 1)
    total = compiled(step, cache, host, MAPPING, back)
    assert equal(host, there)
    assert equal(cache, wanted)
    torch.testing.assert_close(total, wanted[0].sum())


@pytest.mark.usefixtures("_fresh_compiler")
def test_compiled_call_of_vllm() -> None:
    def step(
        src: torch.Tensor, dst: torch.Tensor, mapping: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        fresh = torch.zeros_like(src)
        OPS.swap_blocks(src, fresh, 16, mapping)
        OPS.swap_blocks(fresh, dst, 16, mapping)
        return fresh, dst + 1

    src, dst = rows(1), rows(2)
    wanted = copied([src], [torch.zeros(6, 4)], MAPPING)
    then = copied(wanted, [dst], MAPPING)
    fresh, result = compiled(step, src, dst, MAPPING)
    assert equal([fresh, dst, result], [wanted[0], then[0], then[0] + 1])


@pytest.mark.usefixtures("_fresh_compiler")
def test_compiled_copies_by_handle_are_made_in_order() -> None:
    """The compiler does not know which memory these ops write. Still, it does not remove them, and it
    keeps their order with each other and with reads.
    """
    handles = Handles()

    def step(dst: torch.Tensor, mapping: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = dst + 1
        OPS.copy_blocks_by_handle(*handles.pair, mapping)
        OPS.copy_blocks_by_handle(handles.pair[1], handles.pair[0], mapping.flip(0) + 0)
        OPS.copy_blocks_by_handle(*handles.pair, mapping)
        return before, dst + 1

    dst, src = handles.dst.clone(), handles.src.clone()
    for source, target, mapping in ((src, dst, MAPPING), (dst, src, MAPPING.flip(0)), (src, dst, MAPPING)):
        target.copy_(copied([source], [target], mapping)[0])
    before, after = compiled(step, handles.dst, MAPPING)
    assert equal([handles.dst, handles.src], [dst, src])
    assert equal([before, after], [rows(2) + 1, dst + 1])


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_compiled_copy_by_handle_that_nothing_depends_on_is_made() -> None:
    """The compiler keeps such a copy also with gradients, for which it divides the graph in two."""
    handles = Handles()
    weight = torch.ones((), requires_grad=True)

    def step(other: torch.Tensor, mapping: torch.Tensor) -> torch.Tensor:
        OPS.copy_blocks_by_handle(*handles.pair, mapping)
        return other * weight

    for turn in range(3):
        handles.dst.copy_(rows(2))
        mapping = MAPPING.roll(turn, 0)
        compiled(step, torch.ones(3), mapping)
        assert torch.equal(handles.dst, copied([handles.src], [rows(2)], mapping)[0])
        torch.compiler.reset()


@pytest.mark.usefixtures("_fresh_compiler")
def test_compiled_copies_by_handle_see_memory_as_it_was_before_the_graph() -> None:
    """If the same graph writes to a tensor, its memory may change only after the copy has read it.
    Writes of an earlier graph are visible.

    ``copy_blocks`` does not have this restriction: see ``test_compiled_copy_blocks``.
    """
    handles = Handles()

    def write(src: torch.Tensor) -> None:
        src.add_(1)

    def move(mapping: torch.Tensor) -> None:
        OPS.copy_blocks_by_handle(*handles.pair, mapping)

    wanted = copied([rows(1) + 1], [handles.dst], MAPPING)
    compiled(write, handles.src)
    compiled(move, MAPPING)
    assert equal([handles.src, handles.dst], [rows(1) + 1, wanted[0]])


Wrong = tuple[
    str,
    "Callable[[torch.Tensor, torch.Tensor], object]",
    type[kvpool.KvpoolError],
    type[Exception],
    list[str],
]


def ids(*pairs: tuple[int, int]) -> torch.Tensor:
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)


#: Wrong calls, with one error of each kind for each op. test_bad_input tests wrong mappings and
#: layouts.
WRONG: list[Wrong] = [
    (
        "int32",
        lambda a, b: OPS.copy_blocks([a], [b], MAPPING.int()),
        errors.MappingTypeError,
        TypeError,
        ["int32"],
    ),
    (
        "flat",
        lambda a, b: OPS.copy_blocks([a], [b], MAPPING.flatten()),
        errors.MappingError,
        ValueError,
        ["[6]"],
    ),
    (
        "source block",
        lambda a, b: OPS.copy_blocks([a], [b], ids((0, 1), (6, 0))),
        errors.BlockIndexError,
        IndexError,
        ["pair 1", "source block 6", "0 to 5"],
    ),
    (
        "twice",
        lambda a, b: OPS.swap_blocks([a], [b], ids((0, 3), (1, 2), (2, 3))),
        errors.DuplicateDestinationError,
        ValueError,
        ["pair 2", "block 3"],
    ),
    (
        "overlap",
        lambda a, b: OPS.copy_blocks([b], [b], ids((0, 3), (3, 4))),
        errors.OverlappingCopyError,
        ValueError,
        ["pair 1", "block 3"],
    ),
    (
        "overlap of views",
        lambda a, b: OPS.swap_blocks(b[:4], b[2:], 16, ids((2, 0))),
        errors.OverlappingCopyError,
        ValueError,
        ["pair 0", "block 2"],
    ),
    (
        "no tensors",
        lambda a, b: OPS.copy_blocks([], [], MAPPING),
        errors.LayoutError,
        ValueError,
        ["at least one"],
    ),
    (
        "sizes",
        lambda a, b: OPS.copy_blocks([a[:, :3]], [b], MAPPING),
        errors.LayoutMismatchError,
        ValueError,
        ["12 bytes in the source", "16 in the destination"],
    ),
    (
        "dtypes",
        lambda a, b: OPS.copy_blocks([a.view(torch.int32)], [b], MAPPING),
        errors.LayoutMismatchError,
        ValueError,
        ["torch.int32", "torch.float32"],
    ),
    (
        "block dimension",
        lambda a, b: OPS.copy_blocks([a], [b], MAPPING, 2),
        errors.LayoutError,
        ValueError,
        ["no dimension 2"],
    ),
    *[
        (
            f"block of {size} bytes",
            lambda a, b, size=size: OPS.swap_blocks(a, b, size, MAPPING),
            errors.LayoutError,
            ValueError,
            [f"block_size_in_bytes is {size}", "96 bytes"],
        )
        for size in (0, -16, 5, 97, 2**62, -(2**63))
    ],
    (
        "not contiguous",
        lambda a, b: OPS.swap_blocks(a.t(), b, 16, MAPPING),
        errors.LayoutError,
        ValueError,
        ["(1, 4)", "contiguous"],
    ),
    (
        "no such handle",
        lambda a, b: OPS.copy_blocks_by_handle(-1, 2**62, MAPPING),
        errors.ClosedError,
        RuntimeError,
        ["handle -1"],
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "builtin", "words"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG]
)
def test_refusals(
    call: Callable[[torch.Tensor, torch.Tensor], object],
    error: type[kvpool.KvpoolError],
    builtin: type[Exception],
    words: list[str],
) -> None:
    """torch passes kvpool's exception to the caller unchanged. No memory is changed."""
    src, dst = rows(1), rows(2)
    with pytest.raises(error) as raised:
        call(src, dst)
    assert raised.type is error
    assert isinstance(raised.value, builtin)
    assert [word for word in words if word not in str(raised.value)] == []
    assert equal([src, dst], [rows(1), rows(2)])


@pytest.mark.usefixtures("_fresh_compiler")
def test_refusals_in_compiled_code() -> None:
    def step(src: torch.Tensor, dst: torch.Tensor, mapping: torch.Tensor) -> None:
        OPS.copy_blocks([src], [dst], mapping)

    src, dst = rows(1), rows(2)
    with pytest.raises(errors.DuplicateDestinationError, match=r"pair 1 .* block 3"):
        compiled(step, src, dst, ids((0, 3), (1, 3)))
    assert equal([src, dst], [rows(1), rows(2)])


@pytest.mark.parametrize("where", ["source", "destination", "mapping"])
def test_meta_tensors_among_others_are_refused(where: str) -> None:
    src, dst, mapping = [
        tensor.to("meta") if where == name else tensor
        for name, tensor in (("source", rows(1)), ("destination", rows(2)), ("mapping", MAPPING))
    ]
    for call in (
        lambda: OPS.copy_blocks([src], [dst], mapping),
        lambda: OPS.swap_blocks(src, dst, 16, mapping),
    ):
        with pytest.raises(kvpool.KvpoolError, match="meta"):
            call()


def test_tensors_are_not_kept() -> None:
    src, dst, mapping = rows(1), rows(2), MAPPING.clone()
    flat = [rows(3), rows(4)]
    for _ in range(2):  # created, then cached
        OPS.copy_blocks([src], [dst], mapping)
        OPS.swap_blocks([src], [dst], mapping, 0, 0)
        OPS.swap_blocks(*flat, 16, mapping)
        with pytest.raises(errors.LayoutError):
            OPS.copy_blocks([src], [dst], mapping, 7)
        with pytest.raises(errors.LayoutError):
            OPS.swap_blocks(*flat, 7, mapping)
    gone = [weakref.ref(tensor) for tensor in (src, dst, mapping, *flat)]
    del src, dst, mapping, flat
    gc.collect()
    assert [one() for one in gone] == [None] * 5


def test_the_same_memory_in_another_shape() -> None:
    """All tensors have the same address. A store that is cached for one shape, stride, dtype or size is
    not used for another one.
    """
    here, there = np.zeros(96, dtype=np.uint8), np.zeros(96, dtype=np.uint8)
    turns: list[tuple[Callable[[torch.Tensor], torch.Tensor], int]] = [
        (lambda memory: memory.view(6, 16), 0),
        (lambda memory: memory.view(12, 8), 0),
        (lambda memory: memory.view(16, 6), 0),
        (lambda memory: memory.view(6, 4, 4), 0),
        (lambda memory: memory.view(4, 6, 4), 1),
        (lambda memory: memory.view(4, 6, 4), 0),
        (lambda memory: memory.view(6, 16)[:, :10], 0),
        (lambda memory: memory.view(6, 16)[::2], 0),
        (lambda memory: memory.view(torch.int64).view(6, 2), 0),
        (lambda memory: memory.view(torch.float16).view(6, 8), 0),
        (lambda memory: memory.view(torch.int16).view(6, 8).t(), 1),
        (lambda memory: memory.view(6, 16), 0),
    ]
    generator = np.random.default_rng(0)
    for _ in range(2):
        for view, dim in turns:
            here[:], there[:] = generator.integers(0, 256, (2, 96), dtype=np.uint8)
            src, dst = view(torch.from_numpy(here)), view(torch.from_numpy(there))
            expected = there.copy()
            wanted = view(torch.from_numpy(expected))
            blocks = src.shape[dim]
            mapping = torch.tensor([[blocks - 1, 0], [0, blocks - 1], [1, 1]])
            bits = {1: torch.uint8, 2: torch.int16, 8: torch.int64}[src.element_size()]
            source = src.view(bits).movedim(dim, 0)[mapping[:, 0]]
            wanted.view(bits).movedim(dim, 0)[mapping[:, 1]] = source
            OPS.copy_blocks([src], [dst], mapping, dim)
            assert np.array_equal(there, expected)
            with pytest.raises(errors.BlockIndexError, match=f"0 to {blocks - 1}"):
                OPS.copy_blocks([src], [dst], torch.tensor([[blocks, 0]]), dim)
    for size in (16, 8, 48, 96, 16):
        here[:], there[:] = generator.integers(0, 256, (2, 96), dtype=np.uint8)
        expected = there.copy()
        expected[-size:] = here[:size]
        OPS.swap_blocks(
            torch.from_numpy(here), torch.from_numpy(there), size, torch.tensor([[0, 96 // size - 1]])
        )
        assert np.array_equal(there, expected)


def test_lists_that_differ_after_the_first_tensor() -> None:
    first, second, third = rows(1), rows(2), rows(3)
    targets = [torch.zeros(6, 4), torch.zeros(6, 4)]
    for other in (second, third, second):
        OPS.copy_blocks([first, other], targets, MAPPING)
        assert equal(targets, copied([first, other], targets, MAPPING))
        assert torch.equal(targets[1][4], other[0])
    with pytest.raises(errors.LayoutMismatchError, match="source has 1 regions, the destination 2"):
        OPS.copy_blocks([first], targets, MAPPING)


def test_more_stores_than_are_remembered() -> None:
    tensors = [torch.full((6, 4), float(value)) for value in range(150)]
    target = torch.zeros(6, 4)
    for turn in (tensors, tensors[::-1], tensors[:3]):
        for value, tensor in enumerate(tensors):
            OPS.copy_blocks([tensor], [target], ids((0, value % 6)))
            OPS.swap_blocks(tensor, target, 16, ids((1, (value + 1) % 6)))
            assert target[[value % 6, (value + 1) % 6]].eq(value).all(), turn


def test_ops_of_many_threads() -> None:
    barrier = threading.Barrier(8)

    def work(worker: int) -> bool:
        barrier.wait()
        right = True
        for turn in range(30):
            src, dst = torch.full((6, 4), float(100 * worker + turn)), torch.zeros(6, 4)
            OPS.copy_blocks([src], [dst], MAPPING)
            OPS.swap_blocks(src, dst, 16, ids((0, 0)))
            right &= bool(dst[[0, 4, 1, 3]].eq(100 * worker + turn).all()) and not dst[[2, 5]].any()
        return right

    with ThreadPoolExecutor(8) as executor:
        assert list(executor.map(work, range(8))) == [True] * 8
