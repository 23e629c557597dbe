"""Converts metrics to a text page for Prometheus and similar tools, and serves it.

``prometheus_client`` writes the text and serves it. This module converts kvpool's samples to that
package's metric families. It imports the package when a page is first made: ``pip install
'kvpool[metrics]'``.
"""

from __future__ import annotations

import itertools
import logging
import threading
from typing import TYPE_CHECKING, Any, Final, Literal
from wsgiref.simple_server import make_server

import kvpool
from kvpool._owner import Owner
from kvpool.errors import MissingPackageError
from kvpool.metrics.aliases import ALIASES, values
from kvpool.metrics.bounds import BoundedServer, BoundedServerOnSix, Handler
from kvpool.metrics.catalogue import CATALOGUE
from kvpool.metrics.collect import Buckets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.core import Metric

    from kvpool.metrics.aliases import Engine
    from kvpool.metrics.catalogue import Kind
    from kvpool.metrics.collect import Samples

__all__ = ["Format", "Server", "families", "library", "serve", "text"]

logger = logging.getLogger("kvpool.metrics")

Format = Literal["openmetrics", "prometheus"]

#: With this escaping, names remain unchanged. Otherwise, prometheus_client replaces colons by
#: underscores in the names of OpenMetrics samples.
_ESCAPING: Final = "allow-utf-8"
_OPENMETRICS: Final = f"application/openmetrics-text; version=1.0.0; escaping={_ESCAPING}"


def library() -> Any:
    """Returns the package ``prometheus_client``. Raises ``MissingPackageError`` without it."""
    try:
        import prometheus_client
    except ImportError as error:
        raise MissingPackageError(
            "pages of metrics need prometheus_client: pip install 'kvpool[metrics]'"
        ) from error
    return prometheus_client


def families(samples: Samples, constant: Mapping[str, str], also: Iterable[Engine]) -> Iterator[Metric]:
    """Yields the families of a page, without those that have no samples."""
    library()
    from prometheus_client.core import InfoMetricFamily

    info = InfoMetricFamily("kvpool_build", "The version of kvpool.", labels=tuple(constant))
    info.add_metric(tuple(constant.values()), {"version": kvpool.__version__})
    yield info
    for definition in CATALOGUE:
        found = samples.values.get(definition.name)
        if found:
            named = [(tuple(zip(definition.labels, labels, strict=True)), value) for labels, value in found]
            yield _family(definition.name, definition.kind, definition.help, definition.unit, named, constant)
    for alias in itertools.chain.from_iterable(ALIASES[engine] for engine in also):
        more = () if alias.label is None else (alias.label,)
        same = [((("pool", pool), *more), value) for pool, value in values(alias, samples)]
        if same:
            yield _family(alias.name, alias.kind, f"As {alias.of}.", "", same, constant)


def _family(
    name: str,
    kind: Kind,
    text: str,
    unit: str,
    found: list[tuple[tuple[tuple[str, str], ...], float | Buckets]],
    constant: Mapping[str, str],
) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    classes = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    names = [*constant, *(label for label, _ in found[0][0])]
    family: Any = classes[kind](name, text, labels=names, unit=unit)
    for labels, value in found:
        told = [*constant.values(), *(label for _, label in labels)]
        if isinstance(value, Buckets):
            ends = [*(_number(end) for end in value.bounds), "+Inf"]
            family.add_metric(
                told, list(zip(ends, itertools.accumulate(value.counts), strict=True)), value.sum
            )
        else:
            family.add_metric(told, value)
    return family  # type: ignore[no-any-return]


def _number(value: float) -> str:
    """Formats the bound of a bucket as Prometheus does, as a float."""
    return repr(float(value))


class _Source:
    """The collector that a registry of ``prometheus_client`` calls."""

    def __init__(self, collect: Any) -> None:
        self.collect = collect


def _registry(collect: Any) -> Any:
    registry = library().CollectorRegistry(auto_describe=False)
    registry.register(_Source(collect))
    return registry


def text(collect: Any, form: Format) -> str:
    """Returns the page as text."""
    write: Any = library().generate_latest
    if form == "openmetrics":
        from prometheus_client.openmetrics import exposition

        write = exposition.generate_latest
    page: bytes = write(_registry(collect), escaping=_ESCAPING)
    return page.decode()


class Server:
    """Serves a page until it is closed. It is also a context manager.

    Attributes:
        port: The port on which the server listens.
        url: The address of the page.
    """

    def __init__(self, server: Any, thread: Any, host: str) -> None:
        self._owner = Owner("the metrics server")
        self._server, self._thread = server, thread
        self.port: int = server.server_port
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"

    def close(self) -> None:
        """Stops listening. Further calls do nothing.

        Raises:
            ClosedError: This process is a forked child.
        """
        self._owner.check()
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def serve(collect: Any, port: int, host: str) -> Server:
    """Starts a thread that serves the page."""
    page = library().make_wsgi_app(_registry(collect))

    def app(environ: dict[str, Any], respond: Any) -> Any:
        wanted = environ.get("HTTP_ACCEPT", "")
        environ["HTTP_ACCEPT"] = _OPENMETRICS if "application/openmetrics-text" in wanted else ""
        try:
            return page(environ, respond)
        except Exception as error:
            logger.error("the page of metrics cannot be made: %s: %s", type(error).__name__, error)
            respond("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b"the page cannot be made: the log of the process says why\n"]

    kind = BoundedServerOnSix if ":" in host else BoundedServer
    server = make_server(host, port, app, kind, handler_class=Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="kvpool-metrics", daemon=True)
    thread.start()
    return Server(server, thread, host)
