"""Calls the extension with values that report a wrong size, for every argument that is a sequence, a
buffer or a count.

test_hostile.py runs this file as a program. The program makes the calls from a given number on, under a
memory limit. It writes a line of JSON before and after each call. If a call ends the process, its
second line is missing.
"""

from __future__ import annotations

import inspect
import itertools
import json
import resource
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

warnings.filterwarnings("ignore", "kvpool was built", RuntimeWarning)

import numpy as np  # noqa: E402

import kvpool  # noqa: E402
from kvpool import _core, store  # noqa: E402
from kvpool.transfer import BlockStore  # noqa: E402
from tests import kinds, rows  # noqa: E402
from tests.argument_kinds import ALONE, KINDS  # noqa: E402

HUGE = 2**40
# Bytes of memory that a call may use in addition to what the process already uses. If a value never
# ends, the call reads it until this memory is full. A replay starts a thread, whose stack alone takes 2
# MiB of it.
ROOM = 8 << 20


class Liar(Sequence[Any]):
    """A sequence whose length is reported as 2**40, but that ends after two items."""

    def __init__(self, item: object, length: int = HUGE) -> None:
        self.item, self.length = item, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, at: Any) -> Any:
        if at < 2:
            return self.item
        raise IndexError(at)


class Endless(Liar):
    """A sequence whose length is reported as 2**40, and whose iteration never ends."""

    def __getitem__(self, at: Any) -> Any:
        return self.item

    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat(self.item)


class World(rows.World):
    """The objects on which the calls of the rows, and of the entries below, are made."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.vllm = _core.vllm.VllmPool(16, True)
        self.feed = _core.vllm.VllmFeed(lambda *_: (None, None, None, None, None), 9)
        self.backend: Any = Liar(0)
        self.objects = self.opened()
        self.rows = rows.rows(self)
        self.groups: dict[str, Any] = {
            "coordinator": None,
            "scheduler_block": 4,
            "max_model_len": 64,
            "blocks_class": tuple,
            "empty": None,
            "fallback": None,
            "recomputed": 0,
            "watermark": 0,
        }

    def opened(self, backend: Any = None, **settings: Any) -> store.Store:
        backend = backend or store.SharedFolder(self.folder, 1 << 20)
        return store.Store(backend, store.Arena(4, 64), store.Namespace(**rows.NAMESPACE), **settings)

    def tensor(self, shape: Any, strides: Any) -> Any:
        class Tensor:
            is_cpu, dtype = True, "torch.uint8"

            def __init__(self) -> None:
                self.shape = shape

            def stride(self) -> Any:
                return strides

            data_ptr = staticmethod(lambda: 4096)
            element_size = staticmethod(lambda: 1)
            is_pinned = staticmethod(lambda: False)

        return Tensor()


class Entry(NamedTuple):
    """A call with one argument under test, and an item that this argument would accept."""

    call: Callable[[World, Any], object]
    item: object = None
    #: The kind of the argument, from argument_kinds.py.
    kind: object = None


RETENTION = kvpool.Retention(50)
GROUP: dict[str, Any] = {
    **dict.fromkeys(("reads", "retained", "more_slots", "group"), 0),
    **dict.fromkeys(("most", "manager", "ends", "prompt_tail", "this_step", "states")),
    **dict.fromkeys(("zeroed", "drops"), False),
    **dict.fromkeys(("cached", "counts"), True),
    **dict.fromkeys(("block_size", "alignment"), 4),
    "kind": "full",
    "scale": 1,
    "tables": {},
    "num_cached": {},
}
#: Valid items for the sequence arguments to which the calls in rows.py pass an empty sequence or none.
ITEMS: dict[str, object] = {
    "offsets": 0,
    **dict.fromkeys(("computed", "covered", "CacheManager.release (batch).output_tokens"), 1),
    **dict.fromkeys(("failed", "mapping"), (0, 1)),
    "CacheManager.admit.retention": (0, None, RETENTION),
    "CacheManager.release (batch).finish_reason": "stop",
    "Replay.groups": ("full", 16, 0, None),
    "groups": kvpool.GroupSpec("full", 4),
    "multimodal": ("image", 0, 4),
    "policies": "lru",
    "scratch": (0, 5),
    "tenants": kvpool.TenantLimits(1),
    "tiers": (8, 1.0),
}
#: Sequence arguments of calls that rows.py lacks: calls of stores, tensors, and vLLM's pool.
MORE: dict[str, Entry] = {
    "pass_on": Entry(lambda w, s: _core.events.EventPublisher(w.pool, 0).pass_on(s), 1),
    "store.put": Entry(lambda w, s: w.objects.put(s, [0]), b"k"),
    "store.put, slots": Entry(lambda w, s: w.objects.put([b"k"], s), 0),
    "store.probe": Entry(lambda w, s: w.objects.probe(s), b"k"),
    "store.touch": Entry(lambda w, s: w.objects.touch(s), b"k"),
    "from_tensors": Entry(lambda _, s: BlockStore.from_tensors(s), 1),
    "from_tensors, dims": Entry(
        lambda w, s: BlockStore.from_tensors([w.tensor([4, 8], [8, 1])], block_dim=s), 0
    ),
    "from_tensors, shape": Entry(lambda w, s: BlockStore.from_tensors([w.tensor(s, [8, 1])]), 8),
    "from_tensors, strides": Entry(lambda w, s: BlockStore.from_tensors([w.tensor([4, 8], s)]), 1),
    "submit, row": Entry(lambda w, s: w.engine.submit(w.source, w.target, [s]), 1),
    "copy_by_handle": Entry(
        lambda w, s: _core.transfer.copy_by_handle(w.source.handle, w.target.handle, s), (0, 1)
    ),
    "vllm.find": Entry(lambda w, s: w.vllm.find(b"x" * 32, s), 0),
    "vllm.find_run": Entry(lambda w, s: w.vllm.find_run(s, HUGE, [0]), b"x" * 32),
    "vllm.find_window": Entry(lambda w, s: w.vllm.find_window(s, HUGE, [0], 2, 4, 4, 0), b"x" * 32),
    "vllm.touch": Entry(lambda w, s: w.vllm.touch(s), "block"),
    "vllm.free": Entry(lambda w, s: w.vllm.free(s), "block"),
    "vllm.free, foreign": Entry(lambda w, s: w.vllm.free(s), 1),
    "vllm.claim": Entry(lambda w, s: w.vllm.claim(s), "block"),
    "vllm.unpin": Entry(lambda w, s: w.vllm.unpin(s), "block"),
    "vllm.queue_push": Entry(lambda w, s: w.vllm.queue_push(s, True), "block"),
    "vllm.num_evictable": Entry(lambda w, s: w.vllm.num_evictable(s), "block"),
    "vllm.cache_full": Entry(lambda w, s: w.vllm.cache_full(s, s, 0, HUGE, 4, 0), "block"),
    "vllm.cache_full, mask": Entry(lambda w, s: w.vllm.cache_full([], [], 0, 0, 4, 0, s), True),
    "vllm_block_ids": Entry(lambda _, s: _core.vllm.vllm_block_ids((s,)), "block"),
    "VllmGroups": Entry(lambda w, s: _core.vllm.VllmGroups(w.vllm, s, waiting=[], **w.groups), GROUP),
    "VllmFeed.set_groups": Entry(lambda w, s: w.feed.set_groups(s), (4, "full", None, True)),
    "VllmFeed.stored": Entry(lambda w, s: w.feed.stored(None, [], 0, 4, 0, s), None),
    "VllmFeed.removed": Entry(lambda w, s: w.feed.removed(s), (b"x" * 36, False)),
    "VllmGroups, waiting": Entry(lambda w, s: _core.vllm.VllmGroups(w.vllm, [], waiting=s, **w.groups), 1),
    "VllmGroups, lookup": Entry(
        lambda w, s: _core.vllm.VllmGroups(w.vllm, [GROUP], waiting=[], lookup=(4, s), **w.groups),
        ((0,), False, 4),
    ),
}
#: Count arguments of calls without a row, and counts within arguments of rows.
MORE_COUNTS: dict[str, Entry] = {
    "append_ragged, count covered": Entry(lambda w, n: w.manager.append_ragged(["run"], [1], covered=[n])),
    "append_ragged, count computed": Entry(lambda w, n: w.manager.append_ragged(["run"], [1], computed=[n])),
    "append_ragged, offset": Entry(lambda w, n: w.manager.append_ragged(["run"], [1], [0, n])),
    "truncate, length": Entry(lambda w, n: w.manager.truncate(["run"], [n])),
    "pool without journal": Entry(
        lambda _, n: kvpool.BlockPool(8, journal=kvpool.journal.Journal(ring_bytes=n))
    ),
    "frame_bytes": Entry(
        lambda _, n: kvpool.BlockPool(8, journal=kvpool.journal.Journal(ring_bytes=2**62, frame_bytes=n))
    ),
    "advisor": Entry(lambda _, n: kvpool.BlockPool(8, advisor=kvpool.AdvisorConfig(max_sampled_blocks=n))),
    "tenants": Entry(lambda _, n: kvpool.BlockPool(8, advisor=kvpool.AdvisorConfig(max_tenants=n))),
    "pins": Entry(lambda _, n: kvpool.BlockPool(8, retention=kvpool.RetentionConfig(pin_budget=n))),
    "sampled_lru": Entry(lambda w, n: _core.sizing.sampled_lru(w.trace, max_blocks=n)),
    "replay": Entry(
        lambda w, n: kvpool.traces.Replay(w.trace, mode="engine", max_running=n, step_tokens=n, threads=1)
    ),
    "read_journal": Entry(lambda w, n: kvpool.journal.read_journal(w.pool.journal.image() or b"", count=n)),
    "vllm.allocate": Entry(lambda w, n: w.vllm.allocate(n)),
    "vllm.peek": Entry(lambda w, n: w.vllm.peek(n)),
    "vllm.queue_pop": Entry(lambda w, n: w.vllm.queue_pop(n)),
    "workers": Entry(lambda w, n: w.opened(workers=n)),
    "queue": Entry(lambda w, n: w.opened(queue=n)),
    "remembered_offers": Entry(lambda w, n: w.opened(remembered_offers=n)),
    "capacity_bytes": Entry(lambda w, n: w.opened(store.Custom(w.backend, n, max_payload=1))),
    "VllmPool": Entry(lambda _, n: _core.vllm.VllmPool(n, True)),
}


def entries() -> Iterator[tuple[str, Entry]]:
    """Yields an entry for each argument of the rows that is a sequence or a count."""
    for name, row in rows.rows(rows.World(Path())).items():
        for argument in inspect.signature(row.call).parameters:
            place = f"{name}.{argument}"

            def call(world: World, value: Any, name: str = name, argument: str = argument) -> object:
                _, call, arguments = world.rows[name]
                if name.startswith("Step."):  # the plan of the world becomes stale after a change
                    call = getattr(world.manager.plan_step(), call.__name__)
                return call(**arguments | {argument: value})

            item, kind = ITEMS.get(place, ITEMS.get(argument)), ALONE.get(place) or KINDS[argument]
            given = row.arguments.get(argument)
            if isinstance(given, list):
                item = given[0]
            if item is not None and not isinstance(given, kvpool.hashing.HashChain):
                yield place, Entry(call, "store" if argument == "stores" else item, kind)
            elif kind in (kinds.count, kinds.size, kinds.integer):
                yield place, Entry(call)


FOUND = dict(entries())
SEQUENCES = {name: entry for name, entry in FOUND.items() if entry.item is not None} | MORE
COUNTS = {name: entry for name, entry in FOUND.items() if entry.item is None} | MORE_COUNTS
FORMS: dict[str, Callable[[Any], object]] = {
    "range": lambda _: range(HUGE),
    "liar": Liar,
    "greatest liar": lambda item: Liar(item, sys.maxsize),
    "endless": Endless,
    "array": lambda _: np.broadcast_to(np.int64(1), (HUGE,)),
    "mapping array": lambda _: np.broadcast_to(np.int64(1), (HUGE, 2)),
}
NUMBERS = {str(number): number for number in (2**31, HUGE, 2**63 - 1, 2**64 - 1, 2**127, 2**200)}
#: Clippy forbids other ways to read a sequence than the common ones. So only one argument of each kind
#: is tested with every form of sequence, and the others with one form.
WHOLLY = {entry.kind: name for name, entry in reversed(FOUND.items())}
CASES = [
    *[
        ("sequence", name, form)
        for name, entry in SEQUENCES.items()
        for form in FORMS
        if form == "liar" or entry.kind is None or WHOLLY[entry.kind] == name
    ],
    *[("count", entry, number) for entry in COUNTS for number in NUMBERS],
]


def call(world: World, case: tuple[str, str, str]) -> object:
    what, name, form = case
    if what == "count":
        return COUNTS[name].call(world, NUMBERS[form])
    run, item, _ = SEQUENCES[name]
    item = (
        {"block": world.vllm.blocks[1], "store": world.target}.get(item, item)
        if isinstance(item, str)
        else item
    )
    return run(world, FORMS[form](item))


def outcome(world: World, case: tuple[str, str, str]) -> str:
    """Makes a call. Returns "done", or the classes of the exception that it raises."""
    try:
        call(world, case)
    except BaseException as error:
        return " ".join(base.__name__ for base in type(error).__mro__)
    return "done"


def limit_memory() -> None:
    """Limits the memory of the process relative to its current size, so that each call can use the same
    amount.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, hard))


def main(first: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for number, case in enumerate(CASES[first:], first):
            print(json.dumps([number, None]), flush=True)
            limit_memory()
            print(json.dumps([number, outcome(world, case)]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
