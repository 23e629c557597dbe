"""kvpool: the KV-cache block manager for LLM inference engines.

A scheduler calls :class:`CacheManager`. The parts of a manager are also available as separate classes:

>>> import kvpool
>>> manager = kvpool.CacheManager(num_blocks=64, block_size=4)
>>> manager.admit("a", list(range(10)))
Admission(cached_tokens=0, cached_blocks=0, num_blocks=3)
>>> manager.commit("a", 10)  # the engine has run the prompt: two full blocks can be shared now
2
>>> manager.append(["a"], [77])  # a sampled token, and the blocks that it needed
[]
>>> manager.admit("b", list(range(10))).cached_tokens
8
>>> manager.release("a"), manager.release("b")
(None, None)

This package contains the classes that a scheduler needs. Other topics have modules: :mod:`kvpool.errors`,
:mod:`kvpool.hashing`, :mod:`kvpool.journal`, :mod:`kvpool.traces`, :mod:`kvpool.sizing`,
:mod:`kvpool.policies`, :mod:`kvpool.parts`, :mod:`kvpool.transfer`, :mod:`kvpool.store`,
:mod:`kvpool.events`, :mod:`kvpool.metrics`, :mod:`kvpool.hints`, :mod:`kvpool.models`,
:mod:`kvpool.testing`. Each module is imported when it is first used.

To port a scheduler, begin with ``docs/porting.md`` of the repository. Its folder ``examples/ports`` has a
small program for each kind of engine: a manager over sequences, ids and a trie, a radix tree, groups with
swap, and a scheduler without a manager. The wheel contains neither of them.

Importing kvpool needs neither torch nor CUDA nor any other package. Several threads may use the same object.
After a ``fork`` of the process, the child has to make its own objects, because another thread may have held a
lock of an object during the fork.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING

from kvpool import _core
from kvpool._core.advisor import AdvisorConfig
from kvpool._core.explain import ExplainConfig, Explanation, GroupReach, MissSpan
from kvpool._core.groups import GroupFit, GroupSpec
from kvpool._core.hashing import BlockHasher, ExtraKeys
from kvpool._core.manager import CacheManager
from kvpool._core.pool import BlockPool, PoolStats
from kvpool._core.requests import (
    Admission,
    AdmissionFit,
    ManagerStats,
    Match,
    Probe,
    RequestInfo,
    ScrubReport,
    Step,
)
from kvpool._core.retention import HintReport, Retention, RetentionConfig, RetentionStats, TenantLimits
from kvpool._core.tiers import Swap, TieredPool, TransferPlan
from kvpool._removed import install, missing
from kvpool.errors import KvpoolError

if TYPE_CHECKING:
    from types import ModuleType

    from kvpool import errors as errors
    from kvpool import events as events
    from kvpool import hashing as hashing
    from kvpool import hints as hints
    from kvpool import journal as journal
    from kvpool import metrics as metrics
    from kvpool import models as models
    from kvpool import parts as parts
    from kvpool import policies as policies
    from kvpool import sizing as sizing
    from kvpool import store as store
    from kvpool import testing as testing
    from kvpool import traces as traces
    from kvpool import transfer as transfer

__version__: str = _core.__version__

__all__ = [
    # The main classes: a scheduler makes an object of one of them.
    "CacheManager",
    "BlockPool",
    "TieredPool",
    # Classes that hash a prompt. See kvpool.hashing for more.
    "BlockHasher",
    "ExtraKeys",
    # Types of arguments of managers and pools.
    "AdvisorConfig",
    "ExplainConfig",
    "GroupReach",
    "GroupSpec",
    "Retention",
    "RetentionConfig",
    "TenantLimits",
    # Types of results of managers and pools.
    "Admission",
    "AdmissionFit",
    "Explanation",
    "GroupFit",
    "HintReport",
    "ManagerStats",
    "Match",
    "MissSpan",
    "PoolStats",
    "Probe",
    "RequestInfo",
    "RetentionStats",
    "ScrubReport",
    "Step",
    "Swap",
    "TransferPlan",
    # The base of every exception. The others are in kvpool.errors.
    "KvpoolError",
    "__version__",
]

_LAZY = (
    "events",
    "hashing",
    "hints",
    "journal",
    "metrics",
    "models",
    "parts",
    "policies",
    "sizing",
    "store",
    "testing",
    "traces",
    "transfer",
)

# Type checkers know these modules from the imports under TYPE_CHECKING.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> ModuleType:
        """Imports a module of the package when it is first used."""
        if name in _LAZY:
            return importlib.import_module(f"kvpool.{name}")
        raise missing(__name__, name)


install(CacheManager, BlockPool)

if _core.debug_build:
    warnings.warn(
        "kvpool was built without optimisation and is many times slower: build it with --release",
        RuntimeWarning,
        stacklevel=2,
    )


def __dir__() -> list[str]:
    """Lists the public names and the modules of the package."""
    return [*__all__, "errors", *_LAZY]
