"""A pytest plugin that fails a test if the shadow reports a difference during the test.
``load_plugins`` loads it.

The shadow compares vLLM with a mirror, a pool of kvpool that gets the same calls. Some of vLLM's tests
change vLLM's state directly. If they set a retention interval on a coordinator, this plugin also sets
it on the mirror. Other changes necessarily lead to differences; :data:`WRITES_STATE` lists the tests
that make such changes.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# Tests that change vLLM's state directly. They remove keys from its index, put an event or a copy into
# its queues, or change its number of free blocks.
WRITES_STATE = frozenset(
    {
        "test_async_preempt_readmit_before_transfer_output_is_deferred",
        "test_block_stored_event_group_idx_out_of_bounds",
        "test_cow_retentions_deferred_until_copy_step_processed",
        "test_different_block_size",
        "test_eagle_with_sliding_window",
        "test_prefill_hybrid_model",
        "test_prefill_hybrid_model_eagle",
        "test_request_preemption",
    }
)
PACKAGE = "kvpool.integrations.vllm"


class RetentionInterval:
    """Replaces an attribute of vLLM's coordinators. If a test sets it on a coordinator, the mirror of
    this coordinator gets the same value.
    """

    def __init__(self) -> None:
        self.mirrors: dict[int, tuple[Any, Any]] = {}

    def __get__(self, coordinator: Any, _owner: type | None = None) -> Any:
        return self if coordinator is None else vars(coordinator)["retention_interval"]

    def __set__(self, coordinator: Any, value: Any) -> None:
        vars(coordinator)["retention_interval"] = value
        known = self.mirrors.get(id(coordinator))
        if known is not None and known[0] is coordinator:
            vars(known[1])["retention_interval"] = value


def mirror_retention() -> RetentionInterval:
    """Makes changes of ``retention_interval`` apply to mirrors, too. This holds for managers that are
    made after this call.
    """
    interval = RetentionInterval()
    importlib.import_module(
        "vllm.v1.core.kv_cache_coordinator"
    ).KVCacheCoordinator.retention_interval = interval
    comparison = importlib.import_module(f"{PACKAGE}.comparison").Comparison
    construct = comparison.__init__

    def remember(self: Any, manager: Any, mirror: Any, setting: Any) -> None:
        construct(self, manager, mirror, setting)
        interval.mirrors[id(manager.coordinator)] = (manager.coordinator, mirror.coordinator)

    comparison.__init__ = remember
    return interval


@pytest.fixture(scope="session")
def retention() -> RetentionInterval | None:
    return mirror_retention() if os.environ.get("KVPOOL_VLLM") == "shadow" else None


class Errors(logging.Handler):
    """Collects the plug-in's messages of the level ERROR: differences, and failures to make a mirror."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture(autouse=True)
def shadow_is_silent(
    request: pytest.FixtureRequest,
    retention: RetentionInterval | None,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """Fails the test if the shadow has logged a message of the level ERROR."""
    if retention is None:
        yield
        return
    folder = tmp_path_factory.mktemp("shadow")
    monkeypatch.setattr(importlib.import_module(f"{PACKAGE}.trail").Trail, "folder", str(folder))
    logger = logging.getLogger(importlib.import_module(PACKAGE).LOGGER_NAME)
    errors = Errors()
    logger.addHandler(errors)
    try:
        yield
    finally:
        logger.removeHandler(errors)
        retention.mirrors.clear()
    if request.node.name.partition("[")[0] not in WRITES_STATE:
        assert not errors.lines, "\n".join(errors.lines)
