"""Collects the pages and the speed (GB/s) of each call, in the form of SGLang's storage metrics."""

from __future__ import annotations

import importlib
import threading
import time
from typing import Any

__all__ = ["Speeds"]


class Speeds:
    """The pages and speeds of the calls since the last report. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[tuple[str, int, float]] = []

    def add(self, kind: str, pages: int, page_bytes: int, began: float) -> None:
        """Adds a call that has just ended.

        Args:
            kind: ``prefetch`` or ``backup``.
            pages: Number of pages moved.
            page_bytes: Bytes of each page.
            began: Time when the call began, from ``time.monotonic``.
        """
        speed = pages * page_bytes / 1e9 / max(time.monotonic() - began, 1e-9)
        with self._lock:
            self._calls.append((kind, pages, speed))

    def report(self) -> Any:
        """Returns SGLang's ``StorageMetrics`` of the calls since the last report.

        Returns None if this SGLang has no such class.
        """
        try:
            metrics = importlib.import_module("sglang.srt.observability.metrics_collector").StorageMetrics()
        except (ImportError, AttributeError):
            return None
        with self._lock:
            calls, self._calls = self._calls, []
        for kind, pages, speed in calls:
            getattr(metrics, f"{kind}_pgs").append(pages)
            getattr(metrics, f"{kind}_bandwidth").append(speed)
        return metrics
