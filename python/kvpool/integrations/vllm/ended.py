"""Notifies the pool's eviction policy how vLLM's requests ended: ``KVPOOL_VLLM_EVICTION=hazard``.

vLLM's ``Request`` contains its finish reason and its number of output tokens. The policy gets both,
together with the request's blocks, just before a finished request frees its blocks. A preempted request
returns later, so it is not reported. Only vLLM's front end knows whether an answer was a tool call. In
the engine, a tool call looks like an ordinary ``stop``.

This module chooses the blocks, and the policy interprets the signal. Costs: none if the policy does not
use such signals, otherwise O(blocks of the request) when it ends.
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


def wants_signals(eviction: str) -> bool:
    """Returns whether the policy of this name uses signals about the ends of requests.

    >>> wants_signals("hazard"), wants_signals("lru")
    (True, False)
    """
    return _core.vllm.VllmPool(2, True, eviction).wants_signals


def check() -> None:
    """Raises ``RuntimeError`` if the installed vLLM does not record how requests ended."""
    from vllm.v1.request import Request

    for name in ("is_finished", "get_finished_reason", "num_output_tokens"):
        if not hasattr(Request, name):
            raise RuntimeError(f"the eviction asks how requests end, and this vLLM's Request has no {name}")


def before_free(core: VllmPool, managers: Iterable[Any], request: Any) -> None:
    """Notifies the policy that a request has ended and is about to free its blocks.

    The blocks are still in the tables of vLLM's managers, one per group.
    """
    if not request.is_finished():
        return
    reason = request.get_finished_reason()
    reason_text = None if reason is None else str(reason)
    for manager in managers:
        table = manager.req_to_blocks.get(request.request_id)
        if table:
            core.signal([block.block_id for block in table], reason_text, request.num_output_tokens)
