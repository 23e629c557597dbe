"""Hints of vLLM's requests as retention of their blocks: ``KVPOOL_VLLM_HINTS``.

A request's ``priority``, ``session_id``, ``cache_salt`` and ``kv_hints`` become what the table in
``docs/hints.md`` says (:func:`kvpool.hints.read`), said of its blocks when the request gives them back:
until then nothing can evict them. The setting is the fields of :class:`kvpool.hints.HintRules` as JSON,
beside ``pin_budget``, the most blocks that are pinned, and ``limits``, floors and ceilings by tenant;
or ``all``.

Owns which blocks a hint is of, the clock (seconds of the process, told to the pool when a request
ends), and the counts of what became of hints. A request that is preempted comes back: an end of life is
not said of it.

Costs: nothing without the setting; with it some 3 us a request, and of a request that says something
O(its blocks) for each range.
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
#: What no request of vLLM's says.
_NOT_VLLMS: Final = ("cache_key", "breakpoints")
_RULES: Final = tuple(field.name for field in fields(HintRules) if field.name not in _NOT_VLLMS)
_END: Final = Retention(demoted=True)


@dataclass(frozen=True, slots=True)
class VllmHints:
    """Which hints are followed, and how far.

    Attributes:
        rules: As of :mod:`kvpool.hints`.
        retention: What a pool is made with.
    """

    rules: HintRules
    retention: RetentionConfig

    @classmethod
    def parse(cls, text: str) -> VllmHints:
        """Reads the setting; raises ``ValueError`` for what is none.

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
    """What a pool does with the hints of requests.

    Attributes:
        answers: How many hints became what, by name and outcome; of ``kv_hints`` by the type of the action.
        blocks: Of how many blocks hints were accepted, clipped, ignored.
    """

    def __init__(self, core: VllmPool, rules: HintRules) -> None:
        self._core = core
        self._rules = rules
        self._began = time.monotonic()
        self.answers: Counter[tuple[str, str]] = Counter()
        self.blocks: Counter[str] = Counter()
        self._core.advance_time(0.0)

    def leaving(self, managers: Iterable[Any], request: Any) -> None:
        """A request is about to give its blocks back, which vLLM's managers of its groups have in their
        tables.
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
                self._say(
                    hints, [block.block_id for block in table], manager.block_size, ends=request.is_finished()
                )

    def _say(self, hints: Hints, table: list[int], block_size: int, *, ends: bool) -> None:
        """Hints of a request are said of a table of its blocks, later ones over earlier ones."""
        if hints.tenant is not None:
            self._core.assign_tenant(table, hints.tenant)
        ranges = [*hints.ranges, *([(0, None, _END)] if hints.ends_session else [])]
        for start, end, retention in ranges:
            if retention.demoted and not ends:
                continue
            # A block belongs to a range if its last token does, as everywhere.
            last = None if end is None else end // block_size
            report = self._core.retain(table[start // block_size : last], retention)
            self.blocks.update(accepted=report.accepted, clipped=report.clipped, ignored=report.ignored)


def say(manager: Any, request: Any) -> None:
    """A request is about to give its blocks back to vLLM's KV-cache manager: its hints and its end are
    said of them.
    """
    pool, managers = manager.block_pool, manager.coordinator.single_type_managers
    reader: HintReader | None = getattr(pool, "hints", None)
    if reader is not None:
        reader.leaving(managers, request)
    if getattr(pool, "hears_ends", False):
        ended.say(pool.core, managers, request)


def replacements(asked: str = f"{_NAME} is set") -> list[tuple[Any, str, Any]]:
    """What goes where in vLLM at level ``pool``: class, name, value. At ``manager`` kvpool's own
    manager says hints.

    Raises ``RuntimeError`` for a vLLM whose requests leave in another way: hints would be followed in part.
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

    def saying(stock: Any) -> Any:
        def call(self: Any, request: Any) -> Any:
            say(self, request)
            return stock(self, request)

        return call

    return [(KVCacheManager, name, saying(vars(KVCacheManager)[name])) for name in leaving]
