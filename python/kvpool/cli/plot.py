"""``kvpool replay --png``: the hit rate over the course of a trace, as a picture.

It needs matplotlib, which is not a dependency of kvpool: ``pip install 'kvpool[plot]'``.
"""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, Any

from kvpool.cli.problems import UsageError
from kvpool.cli.terminal import shown

if TYPE_CHECKING:
    from pathlib import Path

    import kvpool

__all__ = ["HitRatePlot", "need_matplotlib"]


def need_matplotlib() -> None:
    """Raise :class:`UsageError` if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--png needs matplotlib", "pip install 'kvpool[plot]'")


class HitRatePlot:
    """Records the hit counts of a replay while it advances, and draws a plot of them."""

    def __init__(self, path: Path, replay: kvpool.traces.Replay) -> None:
        """Records the hit counts before the first request.

        Call :func:`need_matplotlib` and ``check_output`` before, so that errors appear before the replay.
        """
        self._path = path
        self._replay = replay
        self._samples: list[dict[str, Any]] = [self._hits()]

    def _hits(self) -> dict[str, Any]:
        hits: dict[str, Any] = json.loads(self._replay.report_json())["hits"]
        return hits

    def sample(self) -> None:
        """Records the hit counts of the requests that the replay has finished so far."""
        self._samples.append(self._hits())

    def draw(self, title: str) -> None:
        """Writes the picture: the hit rate between two samples, and the hit rate of all requests so far."""
        from matplotlib.figure import Figure

        requests, rolling, cumulative = [], [], []
        for before, after in zip(self._samples, self._samples[1:], strict=False):
            tokens = after["tokens"] - before["tokens"]
            if tokens > 0:
                requests.append(after["requests"])
                rolling.append(100 * (after["token_hits"] - before["token_hits"]) / tokens)
                cumulative.append(100 * after["token_hits"] / after["tokens"])
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        axes = figure.subplots()
        axes.plot(requests, rolling, linewidth=0.8, alpha=0.6, label="each slice of requests")
        axes.plot(requests, cumulative, linewidth=2, label="all requests so far")
        axes.set_xlabel("requests admitted")
        axes.set_ylabel("token hits (%)")
        axes.set_ylim(0, 100)
        # The title contains the path of the trace. A $ in it must not start a formula.
        axes.set_title(shown(title).replace("$", r"\$"), fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(self._path, dpi=120)
