"""Applies the hints of vLLM's requests to the retention of their blocks: ``KVPOOL_VLLM_HINTS``.

``docs/hints.md`` describes the effects of a request's ``priority``, ``session_id``, ``cache_salt`` and
``kv_hints`` (:func:`kvpool.hints.read`). Hints are applied when the request frees its blocks, because its
blocks cannot be evicted before that. The setting is ``all``, or a JSON object with the fields of
:class:`kvpool.hints.HintRules`. The object may also contain ``pin_budget``, the largest number of blocks that
may be pinned, and ``limits``, the minimum and maximum number of blocks of each tenant.

This module owns the choice of blocks for a hint, the clock, and the counts of outcomes. The clock
counts the seconds of this process. The pool gets the time when a request ends. A preempted request
returns later, so hints about the end of a session do not apply to it.

Costs: none without the setting. With it, about 3 us per request. For a request with hints, O(its
blocks) for each range.
"""

from __future__ import annotations

import inspect
import json
import logging
import time
from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from kvpool import Retention, RetentionConfig, TenantLimits
from kvpool.errors import KvpoolError
from kvpool.hints import HintRules, Hints, of_vllm_request, read

from . import LOGGER_NAME, ended

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvpool._core.vllm import VllmPool

logger = logging.getLogger(LOGGER_NAME)

_NAME: Final = "KVPOOL_VLLM_HINTS"
#: Names of rules that the setting cannot contain, because requests of vLLM cannot have such hints.
_NOT_IN_VLLM: Final = ("cache_key", "breakpoints")
_RULES: Final = tuple(field.name for field in fields(HintRules) if field.name not in _NOT_IN_VLLM)
_END: Final = Retention(demoted=True)


@dataclass(frozen=True, slots=True)
class VllmHints:
    """The hints that are followed, and their limits.

    Attributes:
        rules: The rules, see :mod:`kvpool.hints`.
        retention: The retention settings for the pool.
    """

    rules: HintRules
    retention: RetentionConfig

    @classmethod
    def parse(cls, text: str) -> VllmHints:
        """Reads the setting. Raises ``ValueError`` if it is invalid.

        >>> VllmHints.parse('{"priority": true, "max_priority": 80}').rules.max_priority
        80
        >>> VllmHints.parse("all").rules.kv_hints
        True
        """
        if text.lower() == "all":
            return cls(HintRules(priority=True, session_ttl=600.0, kv_hints=True), RetentionConfig())
        try:
            said = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{_NAME} is {text!r}: must be 'all' or a JSON object ({error})") from None
        if not isinstance(said, dict):
            raise ValueError(f"{_NAME} is {text!r}: must be 'all' or a JSON object")
        for name in said:
            if name not in (*_RULES, "pin_budget", "limits"):
                raise ValueError(
                    f"{_NAME} has {name!r}: must be of {', '.join((*_RULES, 'pin_budget', 'limits'))}"
                )
        for name in ("priority", "kv_hints", "pins"):
            if not isinstance(said.get(name, False), bool):
                raise ValueError(f"{_NAME} has {name} {said[name]!r}: must be true or false")
        try:
            limits = [TenantLimits(int(tenant), **limit) for tenant, limit in said.get("limits", {}).items()]
            rules = HintRules(**{name: value for name, value in said.items() if name in _RULES})
            return cls(rules, RetentionConfig(pin_budget=said.get("pin_budget", 0), tenants=limits))
        except (KvpoolError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{_NAME} is {text!r}: {error}") from None


class HintReader:
    """Applies the hints of requests to a pool.

    Attributes:
        answers: Number of hints by name and outcome. For actions in ``kv_hints``, the name is the type
            of the action.
        blocks: Number of blocks by outcome: accepted, clipped or ignored.
    """

    def __init__(self, core: VllmPool, rules: HintRules) -> None:
        self._core = core
        self._rules = rules
        self._began = time.monotonic()
        self.answers: Counter[tuple[str, str]] = Counter()
        self.blocks: Counter[str] = Counter()
        self._core.advance_time(0.0)

    def leaving(self, managers: Iterable[Any], request: Any) -> None:
        """Applies the hints of a request that is about to free its blocks.

        The blocks are still in the tables of vLLM's managers, one per group.
        """
        self._core.advance_time(time.monotonic() - self._began)
        said = of_vllm_request(request)
        if len(said) == 1:
            return
        hints = read(self._rules, **said)
        for answer in hints.answers:
            _, _, action = answer.hint.partition("] ")
            self.answers[action or answer.hint, answer.outcome] += 1
            if answer.outcome != "accepted":
                logger.debug(
                    "kvpool: %s of %s %s: %s", answer.hint, request.request_id, answer.outcome, answer.why
                )
        if not hints.options and not hints.ends_session:
            return
        for manager in managers:
            table = manager.req_to_blocks.get(request.request_id)
            if table:
                self._apply(
                    hints, [block.block_id for block in table], manager.block_size, ends=request.is_finished()
                )

    def _apply(self, hints: Hints, table: list[int], block_size: int, *, ends: bool) -> None:
        """Applies the hints of a request to one of its block tables. Later hints override earlier ones."""
        if hints.tenant is not None:
            self._core.assign_tenant(table, hints.tenant)
        ranges = [*hints.ranges, *([(0, None, _END)] if hints.ends_session else [])]
        for start, end, retention in ranges:
            if retention.demoted and not ends:
                continue
            # A block belongs to a range if the last token of the block does. This is the rule for all
            # ranges.
            last = None if end is None else end // block_size
            report = self._core.retain(table[start // block_size : last], retention)
            self.blocks.update(accepted=report.accepted, clipped=report.clipped, ignored=report.ignored)


def before_free(manager: Any, request: Any) -> None:
    """Applies a request's hints to its blocks, and notifies the policy of its end.

    vLLM's KV-cache manager calls this before it frees the blocks.
    """
    pool, managers = manager.block_pool, manager.coordinator.single_type_managers
    reader: HintReader | None = getattr(pool, "hints", None)
    if reader is not None:
        reader.leaving(managers, request)
    if getattr(pool, "wants_signals", False):
        ended.before_free(pool.core, managers, request)


def replacements(asked: str = f"{_NAME} is set") -> list[tuple[Any, str, Any]]:
    """Returns the replacements in vLLM for level ``pool``: class, name, value.

    At level ``manager``, kvpool's own manager applies the hints. Raises ``RuntimeError`` if requests
    leave the installed vLLM in another way, because then only a part of the hints would be followed.
    """
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.request import Request

    leaving = ("free", "pop_blocks_for_free")
    for name in leaving:
        found = vars(KVCacheManager).get(name)
        if found is None or list(inspect.signature(found).parameters) != ["self", "request"]:
            raise RuntimeError(f"{asked}, and KVCacheManager.{name} is not that of a vLLM that it knows")
    if not callable(getattr(Request, "is_finished", None)):
        raise RuntimeError(f"{asked}, and this vLLM's Request has no is_finished")

    def with_hints(stock: Any) -> Any:
        def call(self: Any, request: Any) -> Any:
            before_free(self, request)
            return stock(self, request)

        return call

    return [(KVCacheManager, name, with_hints(vars(KVCacheManager)[name])) for name in leaving]
