"""How vLLM's requests ended, said to the policy of the pool if it listens: ``KVPOOL_VLLM_EVICTION=hazard``.

vLLM's ``Request`` knows its finish reason and how many tokens it answered. Both are said of its blocks
just before it gives them back, at its end: a request that is preempted comes back, and says nothing.
That an answer was a call of tools is known to vLLM's front end alone: in the engine it is a ``stop`` as
any other.

Owns which blocks that is said of; what it means is the policy's. Costs: nothing with a policy that does
not listen; with one O(blocks of the request) at its end.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kvpool import _core

from . import LOGGER_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvpool._core.vllm import VllmPool

logger = logging.getLogger(LOGGER_NAME)


def hears(eviction: str) -> bool:
    """Whether the policy of this name listens.

    >>> hears("hazard"), hears("lru")
    (True, False)
    """
    return _core.vllm.VllmPool(2, True, eviction).wants_signals


def check() -> None:
    """Raises ``RuntimeError`` for a vLLM whose requests do not say how they ended."""
    from vllm.v1.request import Request

    for name in ("is_finished", "get_finished_reason", "num_output_tokens"):
        if not hasattr(Request, name):
            raise RuntimeError(f"the eviction asks how requests end, and this vLLM's Request has no {name}")


def say(core: VllmPool, managers: Iterable[Any], request: Any) -> None:
    """A request is about to give its blocks back, which vLLM's managers of its groups have in their
    tables.
    """
    if not request.is_finished():
        return
    reason = request.get_finished_reason()
    said = None if reason is None else str(reason)
    for manager in managers:
        table = manager.req_to_blocks.get(request.request_id)
        if table:
            core.signal([block.block_id for block in table], said, request.num_output_tokens)
