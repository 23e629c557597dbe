"""Tests resets of SGLang's prefix cache and updates of its weights. Pages that were stored before are
not found afterwards.
"""

from __future__ import annotations

import gc
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.integrations.sglang import resets
from tests.integrations.hicache_stand_ins import (
    MhaPool,
    PoolName,
    PoolTransfer,
    StatePool,
    attach,
    indices,
    key,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def updater(monkeypatch: pytest.MonkeyPatch) -> type:
    """Stands in for SGLang's class that updates weights."""

    class WeightUpdater:
        fails = False

        def update_weights_from_disk(
            self, model_path: str, load_format: str, *, recapture_cuda_graph: bool
        ) -> Any:
            if self.fails:
                raise RuntimeError("planted")
            return model_path, load_format, recapture_cuda_graph

        def update_weights_from_tensor(self) -> None: ...
        def update_weights_from_ipc(self) -> None: ...
        def load_weights_from_distributed(self) -> None: ...
        def begin_weight_update(self) -> None: ...
        def end_weight_update(self) -> None: ...

    module = types.ModuleType("weight_updater")
    module.WeightUpdater = WeightUpdater  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, resets._UPDATER[0], module)
    return WeightUpdater


def put(backend: Any, number: int) -> None:
    assert backend.batch_set_v1([key(number)], indices(backend.mem_pool_host, 0)) == [True]


def restarted(storage: Any, folder: Path, **changed: Any) -> list[bool]:
    """Starts a new back end as after a restart. Returns which of the pages 1 and 2 it finds."""
    backend = attach(storage, folder, MhaPool(), **changed)
    found = [backend.exists(key(1)), backend.exists(key(2))]
    backend.close()
    return found


@pytest.mark.parametrize(("on_reset", "kept"), [("renew", False), ("keep", True)])
def test_a_reset_of_the_prefix_cache_renews_what_is_stored(
    storage: Any, tmp_path: Path, on_reset: str, kept: bool
) -> None:
    """SGLang clears its host pools together with its prefix cache, but does not call the storage back
    end.
    """
    pool = MhaPool()
    backend = attach(storage, tmp_path, pool, on_reset=on_reset)
    put(backend, 1)
    pool.clear()
    assert backend.exists(key(1)) is kept
    put(backend, 2)
    assert backend.exists(key(2))
    backend.close()
    assert restarted(storage, tmp_path) == [kept, kept]


def test_a_reset_before_the_first_call_renews_too(storage: Any, tmp_path: Path) -> None:
    pool = MhaPool()
    backend = attach(storage, tmp_path, pool)
    put(backend, 1)
    backend.close()
    backend = attach(storage, tmp_path, pool)
    pool.clear()
    assert not backend.exists(key(1))
    backend.close()


def test_a_pool_that_comes_after_a_reset_is_of_the_renewed_name(storage: Any, tmp_path: Path) -> None:
    states = StatePool()
    shares = {"mamba": 0.25}
    transfer = [PoolTransfer(PoolName.MAMBA, indices(states, 0), [key(1)])]
    backend = attach(storage, tmp_path, MhaPool(), {PoolName.MAMBA: states}, shares=shares)
    assert backend.batch_set_v2(transfer) == {PoolName.MAMBA: [True]}
    backend.close()
    pool = MhaPool()
    backend = attach(storage, tmp_path, pool, shares=shares)
    put(backend, 1)
    pool.clear()
    backend.register_mem_host_pool_v2(states, PoolName.MAMBA)
    assert backend.batch_get_v2(transfer) == {PoolName.MAMBA: [False]}
    backend.close()


def test_the_host_pool_is_as_before_after_the_end(storage: Any, tmp_path: Path) -> None:
    pool = MhaPool()
    first = attach(storage, tmp_path / "1", pool)
    assert "clear" in vars(pool)
    first.close()
    assert "clear" not in vars(pool)
    second = attach(storage, tmp_path / "2", pool)
    put(second, 1)
    first.on_reset()
    assert second.exists(key(1))
    pool.clear()
    assert not second.exists(key(1))
    second.close()


def test_a_back_end_that_was_collected_is_not_notified() -> None:
    class Notified:
        def on_reset(self) -> None:
            raise AssertionError

        on_update = on_reset

    pool, notified = MhaPool(), Notified()
    assert resets.watch_pool(pool, notified)
    assert not resets.watch_pool(object(), notified)
    del notified
    gc.collect()
    pool.clear()


def test_every_update_of_weights_renews_what_is_stored(storage: Any, tmp_path: Path, updater: type) -> None:
    """The store also starts empty if the request for an update asks SGLang not to flush its cache."""
    backend, updates = attach(storage, tmp_path, MhaPool()), updater()
    given: dict[str, tuple[str, ...]] = {"update_weights_from_disk": ("m", "auto")}
    for number, name in enumerate(resets._UPDATES):
        put(backend, number)
        assert backend.exists(key(number))
        named = {"recapture_cuda_graph": True} if name in given else {}
        answer = getattr(updates, name)(*given.get(name, ()), **named)
        assert answer == (("m", "auto", True) if name in given else None), "SGLang's own answer"
        assert not backend.exists(key(number)), name
    put(backend, 1)
    updater.fails = True  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="planted"):
        updates.update_weights_from_disk("m", "auto", recapture_cuda_graph=False)
    assert not backend.exists(key(1)), "a part of the weights may have been updated"
    put(backend, 2)
    backend.close()
    assert restarted(storage, tmp_path) == [False, False]


def test_updates_keep_what_is_stored_where_weights_never_change(
    storage: Any, tmp_path: Path, updater: type
) -> None:
    backend = attach(storage, tmp_path, MhaPool(), on_reset="keep")
    put(backend, 1)
    updater().end_weight_update()
    assert backend.exists(key(1))
    assert backend.clear(), "what SGLang is asked to clear is cleared"
    assert not backend.exists(key(1))
    backend.close()


def test_an_sglang_that_updates_weights_in_another_way_is_a_line_in_the_log(
    storage: Any, tmp_path: Path, updater: type, caplog: pytest.LogCaptureFixture
) -> None:
    attach(storage, tmp_path, MhaPool()).close()
    assert caplog.text == ""
    del updater.end_weight_update  # type: ignore[attr-defined]
    attach(storage, tmp_path, MhaPool(), on_reset="keep").close()
    assert caplog.text == ""
    attach(storage, tmp_path, MhaPool()).close()
    assert "updates of weights without a flush are not seen" in caplog.text


def test_methods_are_wrapped_once(storage: Any, tmp_path: Path, updater: type) -> None:
    attach(storage, tmp_path, MhaPool()).close()
    wrapped = updater.end_weight_update  # type: ignore[attr-defined]
    attach(storage, tmp_path, MhaPool()).close()
    assert updater.end_weight_update is wrapped  # type: ignore[attr-defined]


def test_another_weight_version_renews_what_is_stored(
    storage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sglang.srt.runtime_context as context

    serving = types.SimpleNamespace(weight_version="default")
    monkeypatch.setattr(context, "get_serving", lambda: serving, raising=False)
    for on_reset, kept in (("keep", True), ("renew", False)):
        backend = attach(storage, tmp_path, MhaPool(), on_reset=on_reset)
        put(backend, 1)
        serving.weight_version += "+"
        assert backend.exists(key(1)) is kept
        put(backend, 1)
        assert backend.exists(key(1)), "once for each version"
        backend.close()


def test_a_store_that_cannot_be_renewed_keeps_nothing(
    storage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool, states = MhaPool(), StatePool()
    backend = attach(storage, tmp_path, pool, {PoolName.MAMBA: states})
    put(backend, 1)
    transfer = [PoolTransfer(PoolName.MAMBA, indices(states, 0), [key(1)])]
    backend.batch_set_v2(transfer)

    def fail(namespace: object) -> None:
        raise OSError("planted")

    monkeypatch.setattr(backend._pools["kv"].shelf, "renew", fail)
    assert not backend.clear()
    assert "host pool kv cannot be renewed" in caplog.text
    assert not backend.exists(key(1))
    assert backend.batch_set_v1([key(1)], indices(pool, 0)) == [False]
    assert backend.batch_get_v2(transfer) == {PoolName.MAMBA: [False]}, "and the others are renewed"
    assert backend.batch_set_v2(transfer) == {PoolName.MAMBA: [True]}
    backend.close()
