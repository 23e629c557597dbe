"""Detects resets of vLLM's prefix cache, updates of weights, and the adapters of requests.

vLLM's interface for tiers does not report these events. A tier is only notified of resets that include
its connector, and never of adapters. ``install`` therefore wraps four functions of vLLM, once per
process. Each wrapper calls the original function with the same arguments. The only exception is that
every reset also includes the connector.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol

from kvpool.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvpool.integrations.vllm.offload.adapters import Adapters

__all__ = ["Adapter", "HARMLESS", "Watched", "install", "unwatch", "watch"]

#: Methods of vLLM's workers that can be called by name and change no weights. After any other method,
#: the tier is renewed.
HARMLESS: Final = frozenset(
    (
        "compute_weight_checksums",
        "get_model_inspection",
        "release_late_interaction_query_cache",
        "profile",
        "synchronize_device",
        "update_max_model_len",
    )
)


class Watched(Protocol):
    """The interface of a tier that ``watch`` accepts."""

    adapters: Adapters
    renews: bool
    generation: int

    def renew(self) -> None:
        """Drops all chunks. Requests that have already begun store nothing afterwards."""


@dataclasses.dataclass(frozen=True, slots=True)
class Adapter:
    """The ``LoRARequest`` of a request, or None for the base model. Kept in vLLM's ``ReqContext``."""

    request: Any


_TIERS: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def watch(tier: Watched) -> None:
    """Renews a tier at each reset and each update of weights from now on, until ``unwatch``."""
    _TIERS.add(tier)


def unwatch(tier: Watched) -> None:
    """Ends the effect of ``watch`` for a tier. Does nothing if the tier is not watched."""
    _TIERS.discard(tier)


def install(config: Any, *, renews: bool) -> None:
    """Wraps the four functions of vLLM through which this module detects events.

    Further calls change nothing.

    Args:
        config: vLLM's ``VllmConfig``; None if it is unknown.
        renews: Whether a tier must be renewed at resets.

    Raises:
        InvalidArgumentError: The tier must be renewed at resets, and the scheduler or engine of the
            installed vLLM is not that of a supported version.
    """
    try:
        engine = importlib.import_module("vllm.v1.engine.core").EngineCore
        _wrap(_owner(_scheduler(config), "reset_prefix_cache"), "reset_prefix_cache", _reset)
        _wrap(engine, "collective_rpc", _call_workers)
        _wrap(engine, "add_lora", _add_lora)
        module = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler")
        _wrap(module, "_create_req_context", _make_context)
    except (ImportError, AttributeError) as error:
        if renews:
            raise InvalidArgumentError(
                f"on_reset is renew, and this vLLM does not show when its prefix cache is reset ({error}): "
                "use a "
                'supported version, or say that weights never change while the engine runs: "on_reset": '
                '"keep"'
            ) from error


def _scheduler(config: Any) -> Any:
    if config is not None:
        return config.scheduler_config.get_scheduler_cls()
    return importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler


def _owner(kind: Any, name: str) -> Any:
    """Returns the base class, or the class itself, in which a method is defined."""
    for one in kind.__mro__:
        if name in vars(one):
            return one
    raise AttributeError(f"{kind.__name__} has no {name}")


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = vars(owner).get(name)
    if original is None:
        raise AttributeError(f"{owner.__name__} has no {name}")
    if not hasattr(original, "watched_by_kvpool"):
        wrapper: Any = functools.wraps(original)(make(original))
        wrapper.watched_by_kvpool = True
        setattr(owner, name, wrapper)


def _reset(original: Any) -> Any:
    signature = inspect.signature(original)

    def reset_prefix_cache(*args: Any, **kwargs: Any) -> Any:
        tiers = {tier: tier.generation for tier in _TIERS if tier.renews}
        bound = signature.bind(*args, **kwargs)
        if tiers and "reset_connector" in signature.parameters:
            bound.arguments["reset_connector"] = True  # CPU memory has the same outdated content as the disk
        try:
            return original(*bound.args, **bound.kwargs)
        finally:
            for tier, generation in tiers.items():
                if tier.generation == generation:  # the reset failed, or did not reach the connector
                    tier.renew()

    return reset_prefix_cache


def _call_workers(original: Any) -> Any:
    def collective_rpc(self: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, method, *args, **kwargs)
        finally:
            if not (isinstance(method, str) and method in HARMLESS):
                for tier in list(_TIERS):
                    if tier.renews:
                        tier.renew()

    return collective_rpc


def _add_lora(original: Any) -> Any:
    def add_lora(self: Any, lora_request: Any) -> Any:
        for tier in _TIERS:
            tier.adapters.content_of(lora_request)
        try:
            return original(self, lora_request)
        finally:
            for tier in _TIERS:
                tier.adapters.content_of(lora_request)

    return add_lora


def _make_context(original: Any) -> Any:
    def _create_req_context(req: Any, *args: Any, **kwargs: Any) -> Any:
        context = original(req, *args, **kwargs)
        context.set_state(Adapter(req.lora_request))
        return context

    return _create_req_context
