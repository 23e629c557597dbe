"""Arguments of a wrong type, by name, and text without a UTF-8 form: typed errors that name the argument."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool import _core, errors, events, metrics, store, traces
from kvpool.transfer import TransferEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONE = "\ud800"
DIGEST = b"x" * 32
NAMESPACE: dict[str, Any] = {
    "model": "m",
    "weights": "w",
    "kv_dtype": "b",
    "scales": "",
    "layouts": [],
    "block_size": 16,
}
NAMESPACE |= {"layers": (0, 1), "heads": (0, 1), "hash_algorithm": "sha256", "hash_seed": b"", "extra": {}}

#: Classes with what their constructors require.
CLASSES: dict[type, dict[str, Any]] = {
    kvpool.CacheManager: {"num_blocks": 9},
    kvpool.BlockPool: {"num_blocks": 9},
    kvpool.BlockHasher: {},
    kvpool.ExtraKeys: {},
    kvpool.GroupSpec: {"kind": "full"},
    kvpool.Retention: {},
    kvpool.RetentionConfig: {},
    kvpool.TenantLimits: {"tenant": 1},
    kvpool.AdvisorConfig: {},
    kvpool.ExplainConfig: {},
    kvpool.TieredPool: {"num_blocks": [9, 9]},
    kvpool.journal.Journal: {},
    traces.Replay: {"trace": traces.Trace.generate(3)},
    _core.events.EventPublisher: {"source": kvpool.CacheManager(9, 4), "base": 0},
    store.Namespace: NAMESPACE,
    store.Disk: {"folder": "f", "capacity_bytes": 1 << 20},
    store.SharedFolder: {"folder": "f", "capacity_bytes": 1 << 20},
    store.Redis: {"capacity_bytes": 1 << 20},
    store.Arena: {"slots": 1, "slot_bytes": 64},
    TransferEngine: {},
}
#: Arguments that take any object.
ANY = {"trace", "backend", "keep_alive"}


class Strange:
    """Nothing that a call takes."""


def parameters(of: Callable[..., object]) -> Iterator[str]:
    for name, parameter in inspect.signature(of).parameters.items():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and name != "self":
            yield name


CASES = [(kind, name) for kind in CLASSES for name in parameters(kind) if name not in ANY]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{kind.__name__}-{name}" for kind, name in CASES])
def test_a_setting_of_a_wrong_type_is_named(kind: type, name: str) -> None:
    with pytest.raises(errors.KvpoolError, match=name.rstrip("s")) as refused:
        kind(**CLASSES[kind] | {name: Strange()})
    assert isinstance(refused.value, TypeError), refused.value


def subjects() -> Iterator[Any]:
    manager = kvpool.CacheManager(40, 4, retention=True, host_blocks=8, explain=True)
    manager.admit("a", range(9))
    yield manager
    yield kvpool.BlockPool(9, 4, retention=True, payloads=True)
    yield kvpool.BlockHasher(block_size=4)
    yield kvpool.BlockHasher(block_size=4).cursor(range(8))
    yield kvpool.TieredPool([8, 8])
    yield manager.plan_step()
    yield traces.Replay(traces.Trace.generate(3))


METHODS = [
    (subject, name)
    for subject in subjects()
    for name in dir(type(subject))
    if not name.startswith("_") and callable(getattr(type(subject), name)) and any(parameters(getattr(subject, name)))
]


@pytest.mark.parametrize(
    ("subject", "name"), METHODS, ids=[f"{type(subject).__name__}.{name}" for subject, name in METHODS]
)
def test_a_call_with_wrong_types_raises_a_typed_error(subject: Any, name: str) -> None:
    method = getattr(subject, name)
    with pytest.raises(errors.KvpoolError) as refused:
        method(**{name: Strange() for name in parameters(method)})
    assert isinstance(refused.value, TypeError | RuntimeError), refused.value


def manager() -> kvpool.CacheManager:
    made = kvpool.CacheManager(40, 4, retention=True, explain=True)
    made.admit("a", range(9))
    return made


TEXTS: dict[str, Callable[[], object]] = {
    "eviction": lambda: kvpool.CacheManager(9, 4, eviction=LONE),  # type: ignore[arg-type]
    "algorithm": lambda: kvpool.CacheManager(9, 4, algorithm=LONE),  # type: ignore[arg-type]
    "seed": lambda: kvpool.CacheManager(9, 4, seed=LONE),
    "request id": lambda: manager().admit(LONE, [1]),
    "finish_reason": lambda: manager().release("a", finish_reason=LONE),
    "finish_reasons": lambda: manager().release_batch(["a"], finish_reasons=[LONE]),
    "kind": lambda: kvpool.GroupSpec(LONE),  # type: ignore[arg-type]
    "keep": lambda: kvpool.GroupSpec("sliding", 4, window=4, keep=LONE),  # type: ignore[arg-type]
    "then": lambda: kvpool.Retention(3, ttl=1.0, then=LONE),  # type: ignore[arg-type]
    "salt": lambda: kvpool.ExtraKeys(salt=LONE),
    "model": lambda: store.Namespace(**NAMESPACE | {"model": LONE}),
    "extra": lambda: store.Namespace(**NAMESPACE | {"extra": {LONE: "x"}}),
    "name": lambda: metrics.Metrics().add(LONE, kvpool.BlockPool(9)),
    "label": lambda: metrics.Metrics(labels={"rank": LONE}),
    "topic": lambda: events.ZmqSink(topic=LONE),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_without_a_utf8_form_is_refused(name: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=name):
        TEXTS[name]()
