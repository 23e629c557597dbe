"""Metrics: exports the counts of pools, managers and stores to Prometheus or OpenTelemetry.

>>> import kvpool
>>> manager = kvpool.CacheManager(64, 4, metrics=True, explain=True)
>>> metrics = kvpool.metrics.Metrics()
>>> metrics.add("main", manager)
>>> manager.clock.observe(0.0)  # seconds on any clock of yours, say once per step
>>> _ = manager.admit("a", range(10)), manager.commit("a", 10)
>>> manager.clock.observe(4.0)
>>> manager.admit("b", range(10)).cached_tokens
8
>>> page = metrics.render()
>>> [line for line in page.splitlines() if line.startswith("kvpool_hit_tokens_total")]
['kvpool_hit_tokens_total{pool="main"} 8.0']
>>> with metrics.start_http(0) as server:  # on 127.0.0.1
...     server.url == f"http://127.0.0.1:{server.port}/metrics"
True

The functions :func:`add`, :func:`remove`, :func:`render` and :func:`start_http` use one
:class:`Metrics` object of the whole process. ``docs/metrics.md`` lists all names, with units and
meanings. The package ``prometheus_client`` writes the text and serves it. It is imported on first use:
``pip install 'kvpool[metrics]'``.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any, Final, get_args

from kvpool._text import utf8
from kvpool.errors import ArgumentTypeError, InvalidArgumentError
from kvpool.metrics import page, telemetry
from kvpool.metrics.aliases import Engine
from kvpool.metrics.catalogue import CATALOGUE, Definition
from kvpool.metrics.collect import Subject, collect
from kvpool.metrics.page import Format, Server

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kvpool.metrics.collect import Samples

__all__ = ["CATALOGUE", "Definition", "Metrics", "Server", "add", "remove", "render", "start_http"]

_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class Metrics:
    """The managers, pools and stores that are observed, by name, and the page with their metrics.

    Several threads may use one object. It keeps each observed object (*subject*) alive until the
    subject is removed. To make a page, it reads each subject once, and holds the subject's lock only
    while it copies the counts. The text is made without the lock.

    Args:
        labels: Labels of every sample. For example, use ``{"rank": "0"}`` if each of several processes
            has its own page.
        also: Engines, ``"vllm"`` or ``"sglang"``. If the engine has a metric with the same meaning, the
            value is also reported under the engine's name.

    Raises:
        InvalidArgumentError: The name of a label is invalid or used by a metric of the catalogue; or an
            engine is unknown.
    """

    def __init__(self, *, labels: Mapping[str, str] | None = None, also: Iterable[Engine] = ()) -> None:
        self._lock = threading.Lock()
        self._subjects: dict[str, Subject] = {}
        self._labels = dict(labels or {})
        self._also = tuple(dict.fromkeys(also))
        taken = {label for definition in CATALOGUE for label in definition.labels} | {"le", "cache_source"}
        for name, value in self._labels.items():
            utf8(value, f"label {name!r}")
            if not _LABEL.fullmatch(name) or name.startswith("__") or name in taken:
                raise InvalidArgumentError(
                    f"label {name!r}: must be a name such as rank, and none of the metrics' own"
                )
        for engine in self._also:
            if engine not in get_args(Engine):
                raise InvalidArgumentError(f"also has {engine!r}: must be of {', '.join(get_args(Engine))}")

    def add(self, name: str, subject: Subject) -> None:
        """Begins to observe a manager, a pool or a store, under a name that must be unique.

        Raises:
            InvalidArgumentError: Another subject has the name, or the name has no UTF-8 form.
            ArgumentTypeError: The subject has another type.
        """
        if not isinstance(subject, Subject):
            raise ArgumentTypeError(
                f"{name!r} is a {type(subject).__name__}: must be a CacheManager, BlockPool or Store"
            )
        utf8(name, "name")
        with self._lock:
            if self._subjects.get(name, subject) is not subject:
                raise InvalidArgumentError(f"the name {name!r} is taken: remove it first, or take another")
            self._subjects[name] = subject

    def remove(self, name: str) -> None:
        """Stops observing the manager, pool or store with this name. Does nothing if the name is unknown."""
        with self._lock:
            self._subjects.pop(name, None)

    def collect(self) -> Samples:
        """Reads all observed managers, pools and stores, and returns every sample as a plain value."""
        with self._lock:
            subjects = dict(self._subjects)
        return collect(subjects)

    def _families(self) -> Iterator[Any]:
        return page.families(self.collect(), self._labels, self._also)

    def render(self, form: Format = "openmetrics") -> str:
        """Returns the page as text: OpenMetrics 1.0, or the older text format of Prometheus.

        Raises:
            MissingPackageError: The package ``prometheus_client`` is missing.
            InvalidArgumentError: The format is unknown.
        """
        if form not in get_args(Format):
            raise InvalidArgumentError(f"form is {form!r}: must be one of {', '.join(get_args(Format))}")
        return page.text(self._families, form)

    def start_http(self, port: int, host: str = "127.0.0.1") -> Server:
        """Serves the page from a thread, at any path, in the format that the client requests.

        The server has no passwords and no TLS. Bind it to an address that other machines can reach only
        if everyone in that network may read how many tokens each tenant had.

        Args:
            port: The port. 0 means any free port, which ``Server.port`` then contains.
            host: The address to listen on.

        Raises:
            MissingPackageError: The package ``prometheus_client`` is missing.
            OSError: The port is in use.
        """
        return page.serve(self._families, port, host)

    def observe(self, meter: Any) -> None:
        """Creates instruments of an OpenTelemetry meter.

        Each instrument reads its samples when OpenTelemetry collects it.

        Args:
            meter: A meter, from ``opentelemetry.metrics.get_meter``.

        Raises:
            MissingPackageError: The package ``opentelemetry`` is missing.
        """
        telemetry.observe(meter, self.collect, self._labels)


_default: Final = Metrics()


def add(name: str, subject: Subject) -> None:
    """Calls :meth:`Metrics.add` of the :class:`Metrics` object that the whole process shares."""
    _default.add(name, subject)


def remove(name: str) -> None:
    """Calls :meth:`Metrics.remove` of the :class:`Metrics` object that the whole process shares."""
    _default.remove(name)


def render(form: Format = "openmetrics") -> str:
    """Calls :meth:`Metrics.render` of the :class:`Metrics` object that the whole process shares."""
    return _default.render(form)


def start_http(port: int, host: str = "127.0.0.1") -> Server:
    """Calls :meth:`Metrics.start_http` of the :class:`Metrics` object that the whole process shares."""
    return _default.start_http(port, host)


def __dir__() -> list[str]:
    return [*__all__]
