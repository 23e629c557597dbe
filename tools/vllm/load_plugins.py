"""A pytest plugin: loads vLLM's general plug-ins, as its engine does, before a test module imports
anything of vLLM.

``tools/vllm_conformance.py`` gives it to pytest with ``-p``; it writes the names in vLLM that then
belong to kvpool to the file that ``KVPOOL_CONFORMANCE_REPLACED`` names, so that a level that leaves
vLLM as it is does not pass as one that agrees with it.

It also stands in for vLLM's own tests/conftest.py, which collects garbage after every test and makes
the run twice as long: the fixtures of it that the suites ask for are below.
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
# Where a plug-in has to put its classes and functions to be used.
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
    """The names in vLLM's modules, and in the classes there, whose value kvpool defines."""
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
    # kvpool waits for the engine's module, which vLLM's own processes import.
    importlib.import_module("vllm.v1.engine.core")
    importlib.import_module("vllm.plugins").load_general_plugins()
    report = os.environ.get("KVPOOL_CONFORMANCE_REPLACED")
    if report:
        Path(report).write_text(json.dumps(replaced_names()), encoding="utf-8")


@pytest.fixture
def caplog_vllm(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """caplog that sees vLLM's messages, which do not reach the root logger otherwise."""
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
    """vLLM's settings as they are without any, for what asks for the current ones."""
    config = importlib.import_module("vllm.config")
    settings = config.VllmConfig()
    with config.set_current_vllm_config(settings):
        yield settings
