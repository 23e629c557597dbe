"""The checks of ``make sglang-hicache-check``, which run in SGLang's environment. SGLang's classes use
kvpool's storage back end.

- Pages of SGLang's own host pools, of every kind and layout, are stored and loaded by the loops of
  SGLang's controller, also after a restart.

- On random histories, queries find the same prefixes as with SGLang's file back end.

- While SGLang's failure injector lets calls fail, every page that is found has the right bytes.

Prints a line for each check. Exit code 0: no difference. 1: a difference.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import logging
import os
import random
import sys
import tempfile
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from sglang.srt.managers.cache_controller import HiCacheController, StorageOperation
from sglang.srt.mem_cache import device_pool_info as info
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheFile,
    HiCacheStorageConfig,
    HiCacheStorageFailureInjector,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

from kvpool.integrations.sglang.hicache import KvpoolHiCacheStorage
from kvpool.integrations.sglang.pages import Lent

if TYPE_CHECKING:
    from collections.abc import Callable

LAYERS, TOKENS, PAGE, DTYPE = 3, 1280, 4, torch.bfloat16
#: Number of pages in a test. It is more than a batch of SGLang has, which is 128.
PAGES: Final = 150
CPU: Final = torch.device("cpu")


def pointers(tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.tensor([one.data_ptr() for one in tensors], dtype=torch.uint64)


def mha(layout: str) -> Any:
    keys, values = (tuple(torch.zeros(TOKENS, 2, 32, dtype=DTYPE) for _ in range(LAYERS)) for _ in range(2))
    buffers = info.KVBuffers(
        k=keys,
        v=values,
        k_data_ptrs=pointers(keys),
        v_data_ptrs=pointers(values),
        layout=info.KVBufferLayout.NHD,
    )
    device = info.MHABufferInfo(
        buffers=buffers, page_size=PAGE, head_num=2, head_dim=32, v_head_dim=32, dtype=DTYPE, device=CPU
    )
    return MHATokenToKVPoolHost(
        device,
        2.0,
        0,
        PAGE,
        layout,
        pin_memory=False,
        device_capacity_tokens=TOKENS,
        start_layer=0,
        end_layer=LAYERS,
    )


def mla(layout: str) -> Any:
    rows = tuple(torch.zeros(TOKENS, 1, 72, dtype=DTYPE) for _ in range(LAYERS))
    device = info.MLABufferInfo(
        buffers=rows,
        data_ptrs=pointers(rows),
        layer_indices=tuple(range(LAYERS)),
        device_layer_num=LAYERS,
        page_size=PAGE,
        kv_lora_rank=64,
        qk_rope_head_dim=8,
        kv_cache_dim=72,
        dtype=DTYPE,
        device=CPU,
    )
    return MLATokenToKVPoolHost(
        device,
        2.0,
        0,
        PAGE,
        layout,
        pin_memory=False,
        device_capacity_tokens=TOKENS,
        start_layer=0,
        end_layer=LAYERS,
        target_layer_num=LAYERS,
    )


def states() -> Any:
    device = info.MambaStateBufferInfo(
        temporal=torch.zeros(2, 64, 5, 4), conv=(torch.zeros(2, 64, 6, dtype=torch.bfloat16),)
    )
    return MambaPoolHost(device, 2.0, 0, device_capacity=64, pin_memory=False, layout="page_first")


KINDS: Final[tuple[tuple[str, Callable[[str], Any], str, bool], ...]] = (
    *(
        ("MHA", mha, layout, layout != "layer_first")
        for layout in ("page_first", "page_first_direct", "page_head")
    ),
    ("MHA", mha, "layer_first", False),
    ("MLA", mla, "page_first", True),
    ("MLA", mla, "page_first_direct", True),
    ("MLA", mla, "layer_first", False),
)


def config(folder: Path, **changed: Any) -> Any:
    extra = {
        "backend_name": "kvpool",
        "module_path": KvpoolHiCacheStorage.__module__,
        "class_name": KvpoolHiCacheStorage.__name__,
        "root_dir": str(folder),
        "capacity_bytes": 64 << 20,
        "free_floor_bytes": 0,
        "weights": "1",
        **changed,
    }
    return HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=True,
        is_page_first_layout=True,
        model_name="model",
        extra_config=extra,
    )


def attach(folder: Path, pool: Any, others: dict[Any, Any] | None = None, **changed: Any) -> Any:
    """Makes a back end with SGLang's factory, and attaches it to host pools with the same calls as
    SGLang.
    """
    backend = StorageBackendFactory.create_backend("dynamic", config(folder, **changed), pool)
    backend.register_mem_pool_host(pool)
    for name, one in {PoolName.KV: pool, **(others or {})}.items():
        backend.register_mem_host_pool_v2(one, name)
    backend.on_host_pools_registered()
    return backend


def controller(backend: Any, pool: Any, zero_copy: bool) -> Any:
    """Makes a stand-in for SGLang's controller. It has the attributes that the controller's loops use."""
    mine = types.SimpleNamespace(
        storage_backend=backend,
        storage_host_pool=pool,
        page_size=PAGE,
        prefetch_sync_queue=types.SimpleNamespace(put=collections.deque().append),
    )
    for verb in ("get", "set"):
        name = f"_page_{verb}_zero_copy" if zero_copy else f"_generic_page_{verb}"
        setattr(mine, f"page_{verb}_func", functools.partial(getattr(HiCacheController, name), mine))
    mine._page_transfer_kv_batch = functools.partial(HiCacheController._page_transfer_kv_batch, mine)
    return mine


def key(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def fill(pool: Any, index: int, seed: int) -> None:
    flat = pool.get_dummy_flat_data_page()
    held = hashlib.shake_256(str(seed).encode()).digest(flat.numel() * flat.element_size())
    words = torch.frombuffer(bytearray(held), dtype=torch.uint8)
    pool.set_from_flat_data_page(index, words.view(flat.dtype))


def content(pool: Any, index: int) -> bytes:
    return bytes(pool.get_data_page(index).contiguous().view(torch.uint8).numpy())


def indices(pages: range) -> torch.Tensor:
    return torch.arange(pages.start * PAGE, pages.stop * PAGE)


def expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise SystemExit(f"hicache: {what}: {found!r}, not {wanted!r}")


def pages_through_the_controller(root: Path) -> None:
    """Stores and prefetches more pages than one batch has, before and after a restart."""
    for name, make, layout, lendable in KINDS:
        for zero_copy in (False, True):
            what = f"{name} {layout}, interface_v1={int(zero_copy)}"
            folder, pool = root / f"{name}-{layout}-{int(zero_copy)}", make(layout)
            for page in range(PAGES):
                fill(pool, page * PAGE, page)
            keys = [key(page) for page in range(PAGES)]
            backend = attach(folder, pool, interface_v1=int(zero_copy))
            pages = backend._pools["kv"].pages
            expect(isinstance(pages, Lent), lendable and zero_copy, f"{what}: lent")
            backup = StorageOperation(indices(range(PAGES)), [], hash_value=keys, prefix_keys=[])
            HiCacheController._page_backup(controller(backend, pool, zero_copy), backup)
            expect(backup.completed_tokens, PAGES * PAGE, f"{what}: stored tokens")
            for again in range(2):
                if again:
                    backend.close()
                    backend = attach(folder, pool, interface_v1=int(zero_copy))
                into = range(PAGES, 2 * PAGES)
                for page in into:
                    fill(pool, page * PAGE, -page)
                fetch = types.SimpleNamespace(
                    hash_value=keys,
                    host_indices=indices(into),
                    prefix_keys=[],
                    pool_transfers=None,
                    request_id="check",
                    is_terminated=lambda: False,
                )
                expect(backend.batch_exists([*keys, key(-1)]), PAGES, f"{what}: hits")
                done = HiCacheController._page_transfer(controller(backend, pool, zero_copy), fetch)
                expect(done, PAGES, f"{what}: loaded pages")
                for page in range(PAGES):
                    same = content(pool, (page + PAGES) * PAGE) == content(pool, page * PAGE)
                    expect(same, True, f"{what}: bytes of page {page}")
            metrics = backend.get_stats()
            expect(sum(metrics.prefetch_pgs), PAGES, f"{what}: pages in SGLang's metrics")
            backend.close()
            print(
                f"{what}: {PAGES} pages stored, loaded, and loaded after a restart; "
                f"{'from and to host memory' if lendable and zero_copy else 'copied'}"
            )


def queries_beside_the_file_back_end(root: Path, turns: int) -> None:
    """Checks that queries for random pages of keys, values and states find the same prefixes as
    SGLang's file back end.
    """
    draw = random.Random(5)
    lengths: dict[int, int] = {}
    for turn in range(turns):
        pool, others = mha("page_first"), {PoolName.MAMBA: states(), PoolName.INDEXER: mla("page_first")}
        mine = attach(root / f"mine{turn}", pool, others)
        theirs = HiCacheFile(config(root), file_path=str(root / f"theirs{turn}"))
        theirs.register_mem_pool_host(pool)
        for name, one in {PoolName.KV: pool, **others}.items():
            theirs.register_mem_host_pool_v2(one, name)
        keys = [key(number) for number in range(8)]
        for name, share in ((PoolName.KV, 0.9), (PoolName.MAMBA, 0.5), (PoolName.INDEXER, 0.9)):
            chosen = [one for one in keys if draw.random() < share]
            if not chosen:
                continue
            size, one = (1 if name is PoolName.MAMBA else PAGE), {PoolName.KV: pool, **others}[name]
            for page in range(len(keys)):
                fill(one, page * size, draw.getrandbits(64))
            transfer = PoolTransfer(name=name, host_indices=torch.arange(len(chosen) * size), keys=chosen)
            expect(
                mine.batch_set_v2([transfer]), theirs.batch_set_v2([transfer]), f"turn {turn}: stored {name}"
            )
            wanted = PoolTransfer(name=name, host_indices=torch.arange(len(keys) * size), keys=keys)
            loaded = []
            for backend in (mine, theirs):
                found = backend.batch_get_v2([wanted])[name]
                loaded.append([content(one, at * size) if there else None for at, there in enumerate(found)])
            expect(loaded[0] == loaded[1], True, f"turn {turn}: loaded {name}")
        state = PoolTransfer(
            name=PoolName.MAMBA, keys=keys[-draw.randint(1, 3) :], hit_policy=PoolHitPolicy.TRAILING_PAGES
        )
        every = PoolTransfer(name=PoolName.INDEXER)
        for asked in (None, [state], [every], [state, every]):
            one, other = (backend.batch_exists_v2(keys, asked) for backend in (mine, theirs))
            expect(
                (one.kv_hit_pages, one.restorable_prefix_pages),
                (other.kv_hit_pages, other.restorable_prefix_pages),
                f"turn {turn}: prefixes",
            )
            if asked is None or len(asked) == 1:
                expect(
                    one.extra_pool_hit_pages, other.extra_pool_hit_pages, f"turn {turn}: pages of each pool"
                )
            lengths[one.kv_hit_pages] = lengths.get(one.kv_hit_pages, 0) + 1
        expect(mine.batch_exists(keys), theirs.batch_exists(keys), f"turn {turn}: hits")
        mine.close()
    expect(len(lengths) > 4, True, "the histories differ")
    print(
        f"queries beside SGLang's file back end: {4 * turns}, no difference; lengths "
        f"{dict(sorted(lengths.items()))}"
    )


def failures_of_sglang(root: Path) -> None:
    """Stores and loads pages while SGLang's failure injector lets calls fail at random. Checks the
    bytes of all pages that are found.
    """
    os.environ["SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE"] = "0.3"
    pool = mha("page_first")
    backend = attach(root / "failures", pool, interface_v1=1)
    expect(isinstance(backend, HiCacheStorageFailureInjector), True, "SGLang's injector")
    found = 0
    for turn in range(200):
        page = turn % 20
        fill(pool, page * PAGE, page)
        backend.batch_set_v1([key(page)], indices(range(page, page + 1)))
        if backend.batch_get_v1([key(page)], indices(range(100, 101))) == [True]:
            found += 1
            expect(content(pool, 100 * PAGE) == content(pool, page * PAGE), True, "bytes beside failures")
    backend.close()
    expect(0 < found < 200, True, "some are found")
    print(f"SGLang's injector of failures: 200 rounds, {found} pages found, none with other bytes")


def main() -> int:
    # Hide the messages that SGLang logs for each miss.
    logging.getLogger("sglang.srt.mem_cache.hicache_storage").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="kvpool-sglang-") as folder:
        root = Path(folder)
        pages_through_the_controller(root)
        queries_beside_the_file_back_end(root, turns=40)
        failures_of_sglang(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
