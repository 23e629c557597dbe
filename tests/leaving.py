"""Programs that end while a daemon thread is in a call of kvpool that runs Python code, a callback.
test_exit.py runs them.

The argument names one program. A daemon thread repeats the call of this program. The main thread ends
as soon as the callback has run once.
"""

from __future__ import annotations

import contextlib
import gc
import io
import sys
import threading
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

warnings.filterwarnings("ignore", "kvpool was built", RuntimeWarning)

import kvpool  # noqa: E402
from kvpool import _core, store  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

entered = threading.Event()


def busy() -> None:
    """Runs Python code long enough for other threads to get the interpreter meanwhile."""
    entered.set()
    for _ in range(1000):
        pass


class Number:
    """A number whose conversion runs Python code."""

    def __index__(self) -> int:
        busy()
        return 1

    def __float__(self) -> float:
        busy()
        return 1.0


class Mortal(Number):
    """A number whose destructor runs Python code."""

    def __index__(self) -> int:
        return 1

    def __del__(self) -> None:
        busy()


class Long(int):
    """A number that runs Python code when it is converted to text for an error message."""

    def __str__(self) -> str:
        busy()
        return "long"


def tokens() -> Any:
    while True:
        busy()
        yield 1


def rows() -> Any:
    """Returns some rows of a mapping between blocks."""
    return iter([(Number(), 2)])


def one() -> list[Any]:
    return [Number()]


def numbers(kind: Any) -> Any:
    return (kind() for _ in range(100))


class Policy(kvpool.policies.Policy):
    """An eviction policy that runs Python code."""

    def __init__(self) -> None:
        self.order: dict[int, None] = {}

    def release(self, block: int) -> None:
        busy()
        self.order[block] = None

    def pop(self) -> int:
        block = next(iter(self.order))
        del self.order[block]
        return block

    def forget(self, block: int) -> None:
        self.order.pop(block, None)


class Tensor:
    """An object with the methods of a torch tensor that kvpool uses."""

    is_cpu, dtype, shape = True, "torch.uint8", (4, 8)
    element_size = staticmethod(lambda: 1)
    is_pinned = staticmethod(lambda: False)

    def data_ptr(self) -> int:
        busy()
        return 4096

    def stride(self) -> tuple[int, int]:
        return 8, 1


class File(io.RawIOBase):
    """A file to write to, whose write runs Python code."""

    def write(self, data: Any) -> int:
        busy()
        return len(data)


class Request:
    """A request of vLLM, with fields whose access runs Python code."""

    lora_request = cache_salt = mm_features = session_id = prompt_embeds = None

    @property
    def _all_token_ids(self) -> list[int]:
        busy()
        return [1, 2, 3, 4]


class Backend:
    """A store back end with one method that takes long."""

    def __init__(self, long: str) -> None:
        self.long = long

    def call(self, name: str) -> None:
        if name == self.long:
            busy()

    def write(self, name: str, *_: object) -> None:
        if not name.endswith("/0"):
            self.call("write")

    def read(self, name: str, *_: object) -> None:
        if not name.endswith("/0"):
            self.call("read")

    def exist(self, names: list[str]) -> list[bool]:
        self.call("exist")
        return [True] * len(names)

    def remove(self, _: list[str]) -> None:
        self.call("remove")


NAMESPACE: dict[str, Any] = {"model": "m", "weights": "w", "kv_dtype": "bf16", "scales": "", "layouts": []}
NAMESPACE |= {
    "block_size": 16,
    "layers": (0, 1),
    "heads": (0, 1),
    "hash_algorithm": "sha256",
    "hash_seed": b"",
}


def over(method: str) -> Callable[[], object]:
    """Returns calls of a store. In each, one method of the store's back end takes long."""
    made = store.Store(
        store.Custom(Backend(method), 1 << 20),
        store.Arena(4, 64),
        store.Namespace(**NAMESPACE, extra={}),
        admission="always",
    )

    def calls() -> None:
        with contextlib.suppress(kvpool.errors.SlotBusyError):
            made.put([b"a"], [0])
        with contextlib.suppress(kvpool.errors.SlotBusyError):  # the load before it is still running
            made.get([b"b"], [1])
        made.probe([b"c"])
        made.remove([b"d"])
        made.wait(0.01)

    return calls


def evictions() -> Callable[[], object]:
    manager = kvpool.CacheManager(64, 4, eviction=Policy())
    numbers = iter(range(10**9))

    def calls() -> None:
        first = next(numbers)
        manager.admit("a", range(first, first + 200))
        manager.commit("a", 200)
        manager.release("a")

    return calls


def collections() -> Callable[[], object]:
    """Returns calls that create lists. The garbage collector runs in each of them, and runs Python
    code.
    """
    pool = kvpool.BlockPool(64)
    gc.callbacks.append(lambda *_: busy())

    def calls() -> None:
        gc.set_threshold(1)
        pool.release(pool.allocate(32))

    return calls


def journal() -> bytes:
    manager = kvpool.CacheManager(64, 4, journal=kvpool.journal.Journal(ring_bytes=1 << 22))
    for number in range(5000):
        manager.admit(number, range(8))
        manager.release(number)
    return manager.journal.image() or b""


def exports() -> Callable[[], object]:
    image = journal()
    return lambda: kvpool.journal.export_journal(image, "python", write=lambda _: busy())


def replays() -> Callable[[], object]:
    image = journal()
    return lambda: kvpool.journal.replay_journal(image, progress=lambda _: busy())


def feed() -> Callable[[], object]:
    made = _core.vllm.VllmFeed(lambda *_: (None, None, None, None, None), 9)
    return lambda: made.stored(Request(), [b"x" * 32], 0, 4, 0, [True])


def mapping() -> Callable[[], object]:
    from kvpool.transfer import BlockStore, TransferEngine

    memory = bytearray(64)
    import numpy as np

    address = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    blocks = BlockStore.from_regions([(address, 8, 8)], 8, keep_alive=memory)
    engine = TransferEngine(threads=1)
    return lambda: engine.submit(blocks, blocks, rows()).wait()


def tensors() -> Callable[[], object]:
    from kvpool.transfer import BlockStore

    return lambda: BlockStore.from_tensors([Tensor()])


def refused() -> object:
    try:
        return kvpool.BlockPool(9).allocate(Long(2**200))
    except kvpool.KvpoolError:
        return None


hasher = kvpool.BlockHasher(block_size=4)
#: The programs by name. Each function prepares a program, and returns the call that its thread repeats.
PROGRAMS: dict[str, Callable[[], Callable[[], object]]] = {
    "a generator of tokens": lambda: lambda: hasher.hash_tokens(tokens()),
    "an index of a list": lambda: lambda: hasher.hash_tokens(list(numbers(Number))),
    "an argument that is a number": lambda: lambda: kvpool.BlockPool(9).allocate(*one()),
    "an argument that is a time": lambda: lambda: kvpool.BlockPool(9).clock.observe(*one()),
    "a destructor": lambda: lambda: hasher.hash_tokens(numbers(Mortal)),
    "a collection of garbage": collections,
    "a text in a message": lambda: refused,
    "an eviction policy": evictions,
    "a file": lambda: lambda: kvpool.traces.Trace.generate(100).write_jsonl(File()),
    "progress of a replay": replays,
    "the parts of an export": exports,
    "a tensor": tensors,
    "the rows of a mapping": mapping,
    "a request of vLLM's": feed,
    **{f"{method} of a back end": partial(over, method) for method in ("write", "read", "exist", "remove")},
}


def main() -> None:
    calls = PROGRAMS[sys.argv[1]]()
    sys.setswitchinterval(1e-5)

    def run() -> None:
        while True:
            calls()

    threading.Thread(target=run, daemon=True).start()
    if not entered.wait(60):
        raise SystemExit("the callback was never run")


if __name__ == "__main__":
    main()
