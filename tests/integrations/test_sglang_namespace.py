"""Tests the names of stored pages. A change of anything that determines the bytes causes a cold start,
and no other change does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kvpool.integrations.sglang import pools
from kvpool.integrations.sglang.namespace import is_replicated, namespace_of, rank_of
from kvpool.integrations.sglang.pages import pages_of
from kvpool.integrations.sglang.shelf import digest_of
from kvpool.store import Disk
from tests.integrations.hicache_stand_ins import (
    Config,
    MhaPool,
    MlaPool,
    StatePool,
    attach,
    content,
    fill,
    indices,
    key,
)


def digest(pool: Any = None, lend: bool = True, **changed: Any) -> bytes:
    pool = pool or MhaPool()
    mine: dict[str, Any] = {"name": "kv", "weights": "1", "scales": "", "engine": {"engine": "sglang 1"}}
    mine |= {name: changed.pop(name) for name in tuple(changed) if name in mine}
    pages = pages_of(pool, lend=lend, staging_bytes=1)
    return namespace_of(Config(**changed), pool, pages, **mine).digest


def changed_pool(**attributes: Any) -> MhaPool:
    pool = MhaPool()
    for name, value in attributes.items():
        setattr(pool, name, value)
    return pool


def test_everything_that_bytes_depend_on_is_a_cold_start() -> None:
    """vllm#55904, lmdeploy#4930: the layout, the dtype and the weights were not part of the name of
    stored pages.
    """
    digests = [
        digest(),
        digest(model_name="qwen"),
        digest(weights="2"),
        digest(scales="v2"),
        digest(name="swa"),
        digest(engine={"engine": "sglang 2"}),
        digest(engine={"engine": "sglang 1", "server json_model_override_args": "{}"}),
        digest(lend=False),
        digest(MhaPool("page_first_direct")),
        digest(MhaPool("page_head")),
        digest(MhaPool("layer_first")),
        digest(MhaPool(page_size=8)),
        digest(MhaPool(heads=4)),
        digest(MlaPool()),
        digest(StatePool()),
        digest(changed_pool(dtype=torch.float16)),
        digest(changed_pool(storage_format_tag="nibbles")),
        digest(changed_pool(start_layer=3)),
        digest(tp_size=2),
        digest(tp_size=2, tp_rank=1),
        digest(pp_size=2),
        digest(pp_size=2, pp_rank=1),
        digest(attn_cp_size=2),
        digest(attn_cp_size=2, attn_cp_rank=1),
        digest(MlaPool(), is_mla_model=True),
        digest(tp_lcm_size=4),
        digest(should_split_heads=True),
        digest(dcp_size=2, dcp_rank=1, logical_page_size=8),
    ]
    assert len(set(digests)) == len(digests)


def test_what_bytes_do_not_depend_on_is_none() -> None:
    """The size of the host memory and the number of the replica do not change the name of pages."""
    assert digest() == digest() == digest(MhaPool(pages=32)) == digest(dp_rank=1)
    assert digest(enable_storage_metrics=True, extra_config={"root_dir": "elsewhere"}) == digest()


def test_ranks_share_what_is_replicated_and_nothing_else() -> None:
    mla: dict[str, Any] = {"is_mla_model": True, "tp_size": 2}
    assert digest(MlaPool(), tp_rank=0, **mla) == digest(MlaPool(), tp_rank=1, **mla)
    assert digest(MhaPool(), tp_rank=0, **mla) != digest(MhaPool(), tp_rank=1, **mla), "a draft with heads"
    assert digest(StatePool(), name="mamba", tp_rank=0, **mla) != digest(
        StatePool(), name="mamba", tp_rank=1, **mla
    )
    assert is_replicated(Config(is_mla_model=True), MlaPool(), "kv")
    assert not is_replicated(Config(), MlaPool(), "kv")


def test_keys_and_namespaces_are_the_same_in_every_process() -> None:
    """lmcache#2136: digests depended on the random seed of Python's hashes, so no page was found after
    a restart.
    """
    script = (
        "from tests.integrations.test_sglang_namespace import digest\n"
        "from kvpool.integrations.sglang.shelf import digest_of\n"
        "print(digest().hex(), digest_of('ab' * 32).hex(), digest_of('ab').hex())"
    )
    root = Path(__file__).resolve().parents[2]
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=root,
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"{digest().hex()} {'ab' * 32} {digest_of('ab').hex()}"


def test_every_rank_has_a_folder_of_its_own() -> None:
    ranks = [
        Config(),
        Config(tp_size=2),
        Config(tp_size=2, tp_rank=1),
        Config(pp_size=2, pp_rank=1),
        Config(attn_cp_size=2, attn_cp_rank=1),
        Config(dp_rank=1),
    ]
    assert len({rank_of(one) for one in ranks}) == len(ranks)
    assert rank_of(Config(tp_rank=1, tp_size=2)) == "tp1of2-pp0of1-cp0of1-dp0"


@pytest.mark.parametrize("lend", [0, 1])
def test_two_ranks_with_other_heads_never_share(
    storage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lend: int
) -> None:
    """vllm#55191: after a change of tensor parallelism, files with the same name contained the KV of
    other heads.
    """
    ranks: list[dict[str, Any]] = [
        {"tp_size": size, "tp_rank": rank} for size in (1, 2, 4) for rank in range(size)
    ]
    backends = [attach(storage, tmp_path, MhaPool(), interface_v1=lend, **rank) for rank in ranks]
    for number, backend in enumerate(backends):
        fill(backend.mem_pool_host, 0, number)
        assert backend.batch_exists([key(1)]) == 0
        assert backend.batch_set_v1([key(1)], indices(backend.mem_pool_host, 0)) == [True]
    for backend in backends:
        pool = backend.mem_pool_host
        assert backend.batch_get_v1([key(1)], indices(pool, 3)) == [True]
        assert content(pool, 3) == content(pool, 0)
        backend.close()

    # The two ranks of the server do not share pages even if their stores have the same folder.
    def same(settings: Any, rank: str, pool: str, capacity_bytes: int) -> Disk:
        return Disk(tmp_path / "same", capacity_bytes, free_floor_bytes=0)

    monkeypatch.setattr(pools, "open_backend", same)
    for rank in ranks:
        backend = attach(storage, tmp_path, MhaPool(), interface_v1=lend, **rank)
        assert backend.batch_exists([key(1)]) == 0
        assert backend.batch_get_v1([key(1)], indices(backend.mem_pool_host, 3)) == [False]
        assert not any(content(backend.mem_pool_host, 3))
        backend.batch_set_v1([key(1)], indices(backend.mem_pool_host, 0))
        backend.close()


def test_what_was_stored_with_other_weights_is_not_found(storage: Any, tmp_path: Path) -> None:
    """SGLang calls clear after an update of the weights in a running server. Pages that were stored
    before are not found afterwards.
    """
    pool = MhaPool()
    backend = attach(storage, tmp_path, pool)
    backend.batch_set_v1([key(1)], indices(pool, 0))
    assert backend.clear()
    assert not backend.exists(key(1))
    backend.batch_set_v1([key(2)], indices(pool, 0))
    assert backend.exists(key(2))
    backend.close()
    again = attach(storage, tmp_path, pool)
    assert (again.exists(key(1)), again.exists(key(2))) == (False, False)
    again.batch_set_v1([key(1)], indices(pool, 0))
    again.close()
    for weights, there in (("2", False), ("1", True)):
        other = attach(storage, tmp_path, pool, weights=weights)
        assert other.exists(key(1)) is there
        other.close()
