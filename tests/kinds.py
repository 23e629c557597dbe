"""Defines kinds of arguments. A kind yields the values that an argument must refuse, each with the
error and words of its message.
"""

from __future__ import annotations

import array
import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

import kvpool
from kvpool import errors

Error = type[kvpool.KvpoolError]
TYPE, VALUE = errors.ArgumentTypeError, errors.InvalidArgumentError
TOKEN, TOKEN_TYPE, BLOCK = errors.TokenError, errors.TokenTypeError, errors.InvalidBlockError
#: For each error of kvpool, the built-in exception that it also derives from.
BUILTINS: Final[dict[Error, type[Exception]]] = {
    **dict.fromkeys((TYPE, TOKEN_TYPE, errors.MappingTypeError), TypeError),
    **dict.fromkeys(
        (VALUE, TOKEN, BLOCK, errors.HashingError, errors.MappingError, errors.LayoutError), ValueError
    ),
    **dict.fromkeys(
        (errors.LayoutMismatchError, errors.DuplicateRequestError, errors.TimeBackwardsError), ValueError
    ),
    **dict.fromkeys((errors.RequestStateError, errors.StaleStepError, errors.BlocksInUseError), RuntimeError),
    **dict.fromkeys((errors.StaleMatchError, errors.StaleEpochError, errors.SwapError), RuntimeError),
    **dict.fromkeys((errors.NoRetentionError, errors.PayloadError), RuntimeError),
    errors.BlockIndexError: IndexError,
    errors.UnknownRequestError: KeyError,
    errors.OutOfBlocksError: MemoryError,
}
#: A text that cannot be encoded as UTF-8: half of a surrogate pair, as it remains if UTF-16 is cut in
#: the middle.
LONE: Final = "chat-\ud800"
LONG: Final = "x" * 10_000_000
#: Integers of more than 128 bits, each with the number that the message must contain. Python does not
#: print the last one.
WIDE: Final = {2**127: "", -(2**127) - 1: "", 2**200: 2**200, 10**5000: ""}


class Strange:
    """An object that no call accepts as an argument."""


class Wrong(NamedTuple):
    """A value that a kind refuses, the expected error, and words that its message must contain."""

    value: Any
    error: Error
    words: tuple[object, ...]


#: A function that yields the wrong values for an argument. It gets the argument's name, and whether the
#: argument has a default and so also accepts None.
Kind = Callable[[str, bool], Iterator[Wrong]]


def others(name: str, *values: object, optional: bool = False, must: str = "") -> Iterator[Wrong]:
    """Yields values of wrong types. The error message has to contain the argument's name, the value's
    class, and what is expected.
    """
    for value in (*values, Strange(), 1j, *([] if optional else [None])):
        yield Wrong(value, TYPE, (name, type(value).__name__, must))


def instance(name: str, optional: bool) -> Iterator[Wrong]:
    """The kind of an argument that must be an object of one class."""
    return others(name, 7, "a", 1.5, [1], optional=optional)


def integer(name: str, optional: bool) -> Iterator[Wrong]:
    yield from others(name, "7", b"7", 1.5, [1], np.array([1, 2]), optional=optional, must="an int")
    yield from (Wrong(number, VALUE, (word,)) for number, word in WIDE.items())


def count(name: str, optional: bool) -> Iterator[Wrong]:
    yield from integer(name, optional)
    yield from (Wrong(number, VALUE, (f"{name} is {number}",)) for number in (-1, -(2**31), -(2**63), 2**64))


def size(name: str, optional: bool) -> Iterator[Wrong]:
    """The kind of a count that must be at least 1, and for which memory is allocated."""
    yield from count(name, optional)
    yield from (Wrong(number, VALUE, (f"{name} is {number}",)) for number in (0, 2**32, 2**63 - 1))


def real(name: str, optional: bool) -> Iterator[Wrong]:
    yield from others(name, "7", [1.0], optional=optional, must="a float")
    yield Wrong(10**400, VALUE, ("0" * 60, "401 characters"))


def amount(name: str, optional: bool) -> Iterator[Wrong]:
    """The kind of an item in a list of floats."""
    return others(name, "7", [1.0], optional=optional)


def seconds(name: str, optional: bool) -> Iterator[Wrong]:
    yield from real(name, optional)
    yield from (Wrong(value, VALUE, (name, value)) for value in (math.nan, math.inf))


def flag(name: str, optional: bool) -> Iterator[Wrong]:
    return others(name, 0, 1, "yes", 1.0, [True], optional=optional, must="a bool")


def text(name: str, optional: bool) -> Iterator[Wrong]:
    yield from others(name, 5, 1.5, ["a"], optional=optional, must="a str")
    yield Wrong(LONE, VALUE, (name, "UTF-8"))


def choice(*known: str) -> Kind:
    """The kind of a name from a list. The message has to list the known names."""

    def kind(name: str, optional: bool) -> Iterator[Wrong]:
        yield from others(name, 5, 1.5, ["a"], optional=optional)
        yield Wrong(LONE, VALUE, (name, "UTF-8"))
        yield from (Wrong(value, VALUE, (value[:60], *known)) for value in ("", "Some", LONG))

    return kind


def sequence(of: Kind = instance, called: str = "") -> Kind:
    """The kind of a sequence whose items are of a kind. The message may use another name than the
    argument's.
    """

    def kind(name: str, optional: bool) -> Iterator[Wrong]:
        label = called or name
        yield from others(label, 7, 1.5, "ab", b"ab", optional=optional)
        yield from (Wrong([one.value], one.error, one.words) for one in of(label, True))

    return kind


def numbers(label: str, error: Error, type_error: Error) -> Kind:
    """The kind of a list of ints from 0 to 2**32 - 1, or a buffer of them."""

    def kind(name: str, optional: bool) -> Iterator[Wrong]:
        arrays = [
            np.zeros(2, dtype=kind)
            for kind in ("f4", "f8", "i1", "i2", "u2", "u8", "c8", "?", "O", "U1", ">i4")
        ]
        arrays += [np.ones(shape, dtype=np.int32) for shape in ((1, 2), (1, 1, 1), ())]
        plain: list[object] = [
            7,
            1.5,
            "",
            "ab",
            b"ab",
            bytearray(b"ab"),
            memoryview(b"ab"),
            {1: 2},
            Strange(),
        ]
        for value in (*plain, *arrays, array.array("h", [1]), *([] if optional else [None])):
            yield Wrong(value, type_error, (f"{label}s are", "int32"))
        items: list[object] = [
            True,
            1.0,
            "1",
            b"1",
            None,
            [1],
            (1,),
            np.bool_(True),
            np.float32(1),
            np.array([1]),
        ]
        for item in items:
            yield Wrong([item], type_error, (f"{label} at position 0", type(item).__name__))
        for number in (-1, -(2**63), 2**32, 2**64, 10**30, -(2**200)):
            for value in ([number], (number,)):
                yield Wrong(value, error, (f"{label} {number} at position 0", 2**32 - 1))
        for buffer in (np.array([-1]), np.array([2**40]), array.array("i", [-7])):
            yield Wrong(buffer, error, (f"{label} {buffer[0]} at position 0",))

    return kind


def block(name: str, optional: bool) -> Iterator[Wrong]:
    for value in (True, 1.0, "1", None, [1], Strange()):
        yield Wrong(value, TYPE, ("block id", type(value).__name__))
    yield from (Wrong(number, BLOCK, (number,)) for number in (-1, 2**32, 2**64))
    yield from (Wrong(number, BLOCK, (word,)) for number, word in WIDE.items())


def own_block(name: str, optional: bool) -> Iterator[Wrong]:
    """The kind of a block id. The block must exist."""
    yield from block(name, optional)
    yield from (Wrong(number, BLOCK, (number,)) for number in (2**31, 2**32 - 1))


any_blocks = numbers("block id", BLOCK, TYPE)


def own_blocks(name: str, optional: bool) -> Iterator[Wrong]:
    yield from any_blocks(name, optional)
    yield from (Wrong([number], BLOCK, (number,)) for number in (2**31, 2**32 - 1))


def held_blocks(name: str, optional: bool) -> Iterator[Wrong]:
    """The kind of the ids of blocks that the call changes. None of them may be the null block."""
    yield from own_blocks(name, optional)
    yield Wrong([0], BLOCK, ("block 0",))


def request(name: str, optional: bool) -> Iterator[Wrong]:
    """The kind of a request id. The request must exist."""
    for unknown in ("nobody", "", "1", 77, -1, 2**64 - 1):
        yield Wrong(
            unknown, errors.UnknownRequestError, (f'"{unknown}"' if isinstance(unknown, str) else unknown,)
        )
    yield Wrong(LONG, errors.UnknownRequestError, ("x" * 60, "10000000 characters"))
    yield from new_request(name, optional)


def new_request(name: str, optional: bool) -> Iterator[Wrong]:
    for value in (None, 1.0, b"run", True, ("run",), ["run"], Strange(), np.array([1, 2])):
        yield Wrong(value, TYPE, ("request id", type(value).__name__))
    yield from (Wrong(number, VALUE, (number, -(2**63), 2**64 - 1)) for number in (2**64, -(2**63) - 1))
    yield from (Wrong(number, VALUE, (word,)) for number, word in WIDE.items())
    yield Wrong(LONE, VALUE, ("a request id", "UTF-8"))


def requests(of: Kind) -> Kind:
    def kind(name: str, optional: bool) -> Iterator[Wrong]:
        arrays = [np.array([[1, 2]]), np.array([1], dtype=np.int32), np.array([1], dtype=">i8")]
        for value in (7, 1.5, "ab", b"ab", None, Strange(), *arrays):
            yield Wrong(value, TYPE, ("request_ids",))
        yield from (Wrong([one.value], one.error, one.words) for one in of(name, optional))

    return kind


def _has_items(value: object) -> bool:
    if isinstance(value, (bytes, bytearray)):
        return True
    return hasattr(value, "__iter__") and np.ndim(np.asarray(value, dtype=object)) > 0


def one_request(name: str, optional: bool) -> Iterator[Wrong]:
    """The kind of a request id in a call that also takes a batch. Values with items are left out,
    because they would be a batch.
    """
    return (one for one in request(name, optional) if isinstance(one.value, str) or not _has_items(one.value))


def batch_of(of: Kind) -> Kind:
    """The kind of a batch of requests in a call that also takes one request. Values without items are
    left out, because they would be one request.
    """

    def kind(name: str, optional: bool) -> Iterator[Wrong]:
        for wrong in requests(of)(name, optional):
            if not isinstance(wrong.value, str) and _has_items(wrong.value):
                yield wrong

    return kind


def prompt_or_request(tokens: Kind) -> Kind:
    """The kind of a prompt in a call that also takes the id of a request."""

    def kind(name: str, optional: bool) -> Iterator[Wrong]:
        yield from (Wrong(value, errors.UnknownRequestError, ()) for value in ("nobody", 77, 2**64 - 1))
        yield Wrong(True, TYPE, ("request id", "bool"))
        yield Wrong(2**64, VALUE, (2**64,))
        for wrong in tokens(name, optional):
            value = wrong.value
            names_one = isinstance(value, (str, int)) or (
                hasattr(value, "__index__") and not _has_items(value)
            )
            if not names_one:
                yield wrong

    return kind


def one_block(name: str, optional: bool) -> Iterator[Wrong]:
    """The kind of a block id in a call that also takes a batch. Values with items are left out, because
    they would be a batch.
    """
    return (one for one in own_block(name, optional) if not _has_items(one.value))


def batch_of_blocks(name: str, optional: bool) -> Iterator[Wrong]:
    """The kind of a batch of blocks in a call that also takes one block. Values without items are left
    out, because they would be one block.
    """
    return (one for one in own_blocks(name, optional) if _has_items(one.value))


def out(name: str, optional: bool) -> Iterator[Wrong]:
    read_only = np.zeros(8, dtype=np.int32)
    read_only.setflags(write=False)
    strided: Any = np.zeros(16, dtype=np.int32)[::2]
    arrays = [np.zeros(8, dtype=kind) for kind in ("i8", "u4", "f4", ">i4")]
    arrays += [np.zeros(shape, dtype=np.int32) for shape in ((4, 2, 1), ())]
    for value in (read_only, strided, *arrays, [0] * 8, bytearray(32), bytes(32), "out", 5, Strange()):
        yield Wrong(value, TYPE, ("out is", "int32"))


def rows_out(name: str, optional: bool) -> Iterator[Wrong]:
    """The kind of a buffer for three rows of equal length, which follow one another."""
    wide: Any = np.zeros((3, 8), dtype=np.int32)[:, ::2]
    shapes: list[Any] = [np.zeros(shape, dtype=np.int32) for shape in ((4, 3), (2, 6), (3, 2, 2), (0, 3), 13)]
    yield from out(name, optional)
    for value in (wide, *shapes, np.zeros((4, 3), dtype=np.int32).T, [[0] * 4] * 3):
        yield Wrong(value, TYPE, ("out is", "int32", "(3, n)"))


def ranges(called: str, *behind: object) -> Kind:
    """The kind of a list of tuples, each of which begins with a start and an end."""

    def kind(name: str, optional: bool) -> Iterator[Wrong]:
        yield from sequence(called=called)(name, optional)
        for value in ((1,), (1, 2, 3, 4), ("a", 2, *behind), (1.0, 2, *behind)):
            yield Wrong([value], TYPE, ())
        yield Wrong([(-1, 5, *behind)], VALUE, ("start", -1))
        yield Wrong([(0, -5, *behind)], VALUE, ("end", -5))

    return kind


def media(name: str, optional: bool) -> Iterator[Wrong]:
    """The kind of a list of multimodal items."""
    yield from sequence()(name, optional)
    yield Wrong([(b"a", 1)], TYPE, ("item 0 of multimodal",))
    yield Wrong([(5, 1, 1)], TYPE, ("identifier", "int"))
    yield Wrong([(LONE, 0, 1)], VALUE, ("UTF-8",))
    yield Wrong([("a", -1, 1)], VALUE, ("offset", -1))
    yield Wrong([("a", 1, -2)], VALUE, ("length", -2))


def digest(name: str, optional: bool) -> Iterator[Wrong]:
    yield from others(name, 7, "a" * 32, [1], optional=optional)
    yield Wrong(b"x", errors.HashingError, ("1 bytes", 32))


def key(name: str, optional: bool) -> Iterator[Wrong]:
    yield from others(name, 7, "k" * 32, [1], optional=optional)
    yield Wrong(b"short", VALUE, ("key", "5 bytes", 32))


def payload(name: str, optional: bool) -> Iterator[Wrong]:
    for value in (1.0, "1", None, True, [1], bytearray(b"1")):
        yield Wrong(value, TYPE, ("item 0", "int or bytes"))
    yield from (Wrong(number, VALUE, (number,)) for number in (-1, 2**64, 2**200))


def path(name: str, optional: bool) -> Iterator[Wrong]:
    return others(name, 7, 1.5, b"a", ["a"], optional=optional)


def place(name: str, optional: bool) -> Iterator[Wrong]:
    """The kind of a pair of a tier and a block."""
    for value in (7, "a", None, Strange()):
        yield Wrong(value, TYPE, ("no block of a tier",))
    for pair in ((1,), (1, 2, 3), (2**200, 1)):
        yield Wrong(pair, VALUE, ())


def stream(name: str, optional: bool) -> Iterator[Wrong]:
    values: list[object] = ["x", "", -1, 2**64, 2**200, 1.5, math.nan, [], {}, b"current", Strange()]
    for value in values:
        yield Wrong(value, errors.MappingTypeError, ("a stream is", type(value).__name__))


def device(name: str, optional: bool) -> Iterator[Wrong]:
    for value in (
        "",
        "meta",
        "CPU",
        "cpu:0",
        "cuda:",
        "cuda:x",
        "cuda:-1",
        "cuda:4294967296",
        "cuda0",
        " cpu",
        "xpu",
    ):
        yield Wrong(value, VALUE, (f'device is "{value}"', "cpu, cuda or cuda:N"))
    yield from others(name, 0, b"cpu", 1.5, optional=optional)


def store_block(name: str, optional: bool) -> Iterator[Wrong]:
    for value in (None, "1", 1.0, [1], True):
        yield Wrong(value, errors.MappingTypeError, (type(value).__name__,))
    for number in (8, -1, 2**31, 2**32, 2**63 - 1, -(2**63), 2**64, 2**200, -(2**200)):
        yield Wrong(number, errors.BlockIndexError, (f"block {number}", "range"))


def store_bytes(name: str, optional: bool) -> Iterator[Wrong]:
    yield from others(name, "x" * 8, 32, [0] * 8)
    for wrong in (0, 1, 7, 9, 64):
        yield Wrong(b"x" * wrong, errors.LayoutMismatchError, (f"{wrong} bytes", "block of 8"))


def regions(name: str, optional: bool) -> Iterator[Wrong]:
    """The kind of a range of regions of a store: the first region, and the one after the last. The
    store has one region.
    """
    for pair in ((0, 0), (1, 0), (0, 2), (2, 3), (0, 2**63), (2**64 - 1, 2**64 - 1)):
        yield Wrong(pair, VALUE, (f"regions is {pair}", "1 regions"))
    yield Wrong((0, 2**200), VALUE, (2**200,))
    for value in ((-1, 1), (0, 2**64), 1, "01", ("0", "1"), (0.0, 1.0), (0, None), (0,), (0, 1, 2), ()):
        yield Wrong(value, VALUE, ("regions is",))


def rows(name: str, optional: bool) -> Iterator[Wrong]:
    """The kind of the regions of a new store: addresses, strides and sizes."""
    yield from others(name, 5, "abc", 1.5)
    for row in (None, 5, "abc", (1, 2), (1, 2, 3, 4), (), ("a", 1, 1), (1.5, 1, 1), (1, None, 1)):
        yield Wrong([(4096, 8, 8), row], VALUE, ("regions", row))


def keep(name: str, optional: bool) -> Iterator[Wrong]:
    yield from others(name, 1.5, [1], optional=optional)
    yield Wrong("x", VALUE, ("junctions", "a number of tokens"))
    yield Wrong(-1, VALUE, ("keep is -1",))


def node(name: str, optional: bool) -> Iterator[Wrong]:
    for value in (-1, 2**200, "far", 0.5, [1]):
        yield Wrong(value, VALUE, ("numa_node",))


def pinned(name: str, optional: bool) -> Iterator[Wrong]:
    for value in ("yes", 1, math.nan, [True]):
        yield Wrong(value, VALUE, (f"pinned is {value!r}",))


def policy(name: str, optional: bool) -> Iterator[Wrong]:
    yield from others(name, 7, 1.5, optional=optional)
    yield Wrong("Some", VALUE, ("Some", *kvpool.policies.eviction_policies()))
    yield Wrong(LONE, VALUE, ("a policy", "UTF-8"))


def anything(name: str, optional: bool) -> Iterator[Wrong]:
    return iter(())
