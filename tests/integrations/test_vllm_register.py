"""Tests how the plug-in installs itself into vLLM, and when it does not."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import pytest

import kvpool.integrations.vllm as plugin
from kvpool.integrations.vllm import gate
from kvpool.integrations.vllm.settings import EVICTIONS, Settings
from tests.integrations.fake_vllm import BOUND, fake_vllm, part

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Every name in vLLM that some level replaces, as the path of its module or class without "vllm.", and
#: the name in it.
NAMES = tuple(
    tuple(path.removeprefix("vllm.").replace(":", ".").rpartition(".")[::2])
    for path in dict.fromkeys(one for paths in gate.REPLACED.values() for one in paths)
)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("KVPOOL_VLLM", "KVPOOL_VLLM_EVENTS", "KVPOOL_VLLM_EVICTION", "KVPOOL_VLLM_SHADOW_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(plugin, "_registered", False)
    monkeypatch.setattr(gate, "check", lambda level: [])
    with fake_vllm() as package:
        yield package


def owned(vllm: Any) -> list[Any]:
    """Returns the objects with these names. For a descriptor, returns the descriptor and not its value."""
    found = []
    for path, name in NAMES:
        owner = vllm
        for step in path.split("."):
            owner = getattr(owner, step)
        found.append(vars(owner)[name])
    return found


def is_kvpools(value: Any) -> bool:
    return str(getattr(value, "__func__", value).__module__).startswith("kvpool.")


def register(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Registers the plug-in. Returns the messages that it logs as warnings or errors."""
    with caplog.at_level(logging.INFO, plugin.LOGGER_NAME):
        plugin.register()
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def imported() -> set[str]:
    return {name for name in BOUND if f"{plugin.__name__}.{name}" in sys.modules}


@pytest.mark.parametrize("value", [None, "", "off", " OFF "])
def test_unset_nothing_is_imported_and_nothing_said(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str | None
) -> None:
    if value is not None:
        monkeypatch.setenv("KVPOOL_VLLM", value)
    monkeypatch.setattr(gate, "check", lambda level: pytest.fail("the gate imports vLLM"))
    before = owned(vllm)
    assert register(caplog) == []
    assert caplog.records == []
    assert imported() == set()
    assert owned(vllm) == before


@pytest.mark.parametrize("empty", ["", " "])
def test_a_variable_that_is_empty_is_unset(empty: str) -> None:
    names = ("KVPOOL_VLLM", "KVPOOL_VLLM_EVENTS", "KVPOOL_VLLM_EVICTION", "KVPOOL_VLLM_SHADOW_DIR")
    read = Settings.from_environment(dict.fromkeys((*names, "KVPOOL_VLLM_JOURNAL_DIR"), empty))
    assert read == Settings.from_environment({}) == Settings()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (
            "KVPOOL_VLLM",
            "everything",
            "KVPOOL_VLLM is 'everything': must be one of off, pool, manager, shadow",
        ),
        ("KVPOOL_VLLM_EVENTS", "some", "KVPOOL_VLLM_EVENTS is 'some': must be one of exact, stock"),
        (
            "KVPOOL_VLLM_EVICTION",
            "mru",
            f"KVPOOL_VLLM_EVICTION is 'mru': must be one of {', '.join(EVICTIONS)}",
        ),
        (
            "KVPOOL_VLLM_EVICTION",
            "last-accessed",
            f"KVPOOL_VLLM_EVICTION is 'last-accessed': must be one of {', '.join(EVICTIONS)}",
        ),
    ],
)
def test_an_unknown_setting_is_one_line_that_says_what_is_known(
    vllm: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: str,
    told: str,
) -> None:
    monkeypatch.setenv("KVPOOL_VLLM", "pool")
    monkeypatch.setenv(name, value)
    before = owned(vllm)
    assert register(caplog) == [f"kvpool: {told}. vLLM is left as it is."]
    assert len(caplog.records) == 1
    assert imported() == set()
    assert owned(vllm) == before


def test_a_vllm_that_differs_is_one_line_and_left_as_it_is(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KVPOOL_VLLM", "pool")
    monkeypatch.setattr(gate, "check", lambda level: [f"one of {level}", "two"])
    before = owned(vllm)
    (line,) = register(caplog)
    assert "one of pool; two" in line
    assert caplog.records[0].levelno == logging.ERROR
    assert imported() == set()
    assert owned(vllm) == before


def test_an_exception_is_logged_and_never_leaves(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KVPOOL_VLLM", "pool")

    def broken(level: str) -> list[str]:
        raise RuntimeError("a\n  bug")

    monkeypatch.setattr(gate, "check", broken)
    before = owned(vllm)
    assert register(caplog) == ["kvpool: vLLM is left as it is: RuntimeError: a bug"]
    (record,) = [record for record in caplog.records if record.levelno >= logging.INFO]
    assert record.exc_info is None, "one line; the calls that led to it are told at DEBUG"
    assert owned(vllm) == before


def test_a_name_that_vllm_lacks_is_logged_and_never_leaves(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KVPOOL_VLLM", "pool")
    del vllm.distributed.kv_events.BlockRemoved
    before = owned(vllm)
    (line,) = register(caplog)
    assert line.startswith("kvpool: vLLM is left as it is: ImportError: cannot import name 'BlockRemoved'")
    assert owned(vllm) == before


def test_a_name_that_cannot_be_set_leaves_all_the_others_as_they_were(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Closed(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            raise AttributeError(f"{name} cannot be set")

    managers = vllm.v1.core.single_type_kv_cache_manager
    sliding = Closed("SlidingWindowManager", (), dict(vars(managers.SlidingWindowManager)))
    managers.SlidingWindowManager = sliding
    monkeypatch.setenv("KVPOOL_VLLM", "manager")
    before = owned(vllm)
    (line,) = register(caplog)
    assert "find_longest_cache_hit cannot be set" in line
    assert all(one is other for one, other in zip(owned(vllm), before, strict=True))


@pytest.mark.parametrize(("level", "managers"), [("pool", 0), ("manager", 2)])
def test_a_level_replaces_its_names_and_logs_that(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, level: str, managers: int
) -> None:
    monkeypatch.setenv("KVPOOL_VLLM", level.upper())
    monkeypatch.setenv("KVPOOL_VLLM_EVENTS", "stock")
    assert register(caplog) == []
    assert [record.getMessage() for record in caplog.records] == [
        f"kvpool: KVPOOL_VLLM={level}, events stock"
    ]
    after = owned(vllm)
    assert sum(map(is_kvpools, after)) == len(gate.REPLACED[level]) == 7 + managers
    assert vllm.v1.core.block_pool.BlockPool.events_class is part("events").StockEvents


def test_registered_twice_is_registered_once(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KVPOOL_VLLM", "pool")
    register(caplog)
    first = owned(vllm)
    caplog.clear()
    # If the plug-in registered itself a second time, it would log an error about this unknown level.
    monkeypatch.setenv("KVPOOL_VLLM", "unknown")
    assert register(caplog) == []
    assert caplog.records == []
    assert all(one is other for one, other in zip(owned(vllm), first, strict=True))


def test_nothing_happens_before_vllms_engine_is_imported(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker never imports the engine's module. vLLM loads its plug-ins before its own modules are
    complete.
    """
    monkeypatch.setenv("KVPOOL_VLLM", "pool")
    engine = sys.modules.pop("vllm.v1.engine.core")
    finders = list(sys.meta_path)
    before = owned(vllm)
    try:
        assert register(caplog) == []
        assert caplog.records == []
        assert imported() == set()
        assert owned(vllm) == before
    finally:
        sys.meta_path[:] = finders
        sys.modules["vllm.v1.engine.core"] = engine


@pytest.mark.parametrize("level", ["pool", "manager"])
def test_what_was_installed_for_a_block_is_taken_out_also_when_the_block_raises(
    vllm: Any, level: str
) -> None:
    install = part("install")
    before = owned(vllm)

    class BlockError(Exception):
        pass

    def use() -> None:
        with install.installed(level, Settings(events="stock")):
            assert sum(map(is_kvpools, owned(vllm))) == (9 if level == "manager" else 7)
            raise BlockError

    with pytest.raises(BlockError):
        use()
    assert all(one is other for one, other in zip(owned(vllm), before, strict=True))


def test_stock_installs_nothing(vllm: Any) -> None:
    install = part("install")
    before = owned(vllm)
    with install.installed("stock"):
        assert owned(vllm) == before


def test_the_stand_in_leaves_nothing_behind() -> None:
    before, names = dict(sys.modules), dict(vars(plugin))
    with fake_vllm():
        part("install")
        assert "vllm.v1.engine.core" in sys.modules
    assert {name for name in sys.modules if name.partition(".")[0] == "vllm"} == {
        name for name in before if name.partition(".")[0] == "vllm"
    }
    assert imported() == {name for name in BOUND if f"{plugin.__name__}.{name}" in before}
    assert dict(vars(plugin)) == names
