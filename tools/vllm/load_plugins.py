"""A pytest plugin that loads vLLM's general plug-ins before a test module imports vLLM, as vLLM's
engine does.

``tools/vllm_conformance.py`` passes it to pytest with ``-p``. The plugin writes the names in vLLM that
kvpool has replaced to the file given by ``KVPOOL_CONFORMANCE_REPLACED``. So that program notices if a
level replaces nothing. The tests of such a level would pass without testing kvpool.

The plugin also replaces vLLM's own tests/conftest.py, which collects garbage after every test and makes
the run twice as long. The fixtures that the suites need are defined below.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = ("shadow_watch",)
# The modules of vLLM in which kvpool may replace classes and functions.
MODULES = (
    "vllm.v1.core.block_pool",
    "vllm.v1.core.kv_cache_utils",
    "vllm.v1.core.kv_cache_manager",
    "vllm.v1.core.kv_cache_coordinator",
    "vllm.v1.core.single_type_kv_cache_manager",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.engine.core",
)


def replaced_names() -> list[str]:
    """Returns the names in vLLM's modules and classes that now refer to code of kvpool."""
    found = []
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name, value in vars(module).items():
            if str(getattr(value, "__module__", "")).partition(".")[0] == "kvpool":
                found.append(f"{module_name}.{name}")
            elif isinstance(value, type) and value.__module__ == module_name:
                found += [
                    f"{module_name}.{name}.{member}"
                    for member, defined in vars(value).items()
                    if str(getattr(defined, "__module__", "")).partition(".")[0] == "kvpool"
                ]
    return sorted(found)


def pytest_configure() -> None:
    # Import the engine's module, because kvpool installs itself at that moment. vLLM's own processes
    # import it at their start.
    importlib.import_module("vllm.v1.engine.core")
    importlib.import_module("vllm.plugins").load_general_plugins()
    report = os.environ.get("KVPOOL_CONFORMANCE_REPLACED")
    if report:
        Path(report).write_text(json.dumps(replaced_names()), encoding="utf-8")


@pytest.fixture
def caplog_vllm(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """A caplog that also captures vLLM's messages. Otherwise these do not reach the root logger."""
    logger = logging.getLogger("vllm")
    before = logger.propagate
    logger.propagate = True
    try:
        with caplog.at_level(logging.INFO):
            yield caplog
    finally:
        logger.propagate = before


@pytest.fixture
def default_vllm_config() -> Iterator[Any]:
    """Makes vLLM's default settings current, for code that reads the current settings."""
    config = importlib.import_module("vllm.config")
    settings = config.VllmConfig()
    with config.set_current_vllm_config(settings):
        yield settings
