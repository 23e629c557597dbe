"""Sessions: group requests. The end of a session also affects blocks that earlier requests left cached.

This module owns the names of sessions, their live requests, and the hashes of the last request of each
session that was released. The number of sessions is limited. If there are too many, the least recently
used session is dropped, and can then no longer be ended early. This module changes the manager only
through ``retention.end_of_life``. Running requests continue.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from kvpool.errors import InvalidArgumentError, KvpoolError, StaleEpochError

if TYPE_CHECKING:
    from kvpool import CacheManager
    from kvpool._core import RequestId

__all__ = ["Sessions"]


class Sessions:
    """The sessions of one manager.

    Args:
        manager: A manager made with retention.
        limit: The largest number of sessions that are tracked. Each one stores the hashes of its last prompt:
            32 bytes per block.

    Raises:
        InvalidArgumentError: ``limit`` is below 1.

    >>> import kvpool
    >>> manager = kvpool.CacheManager(64, 4, retention=True)
    >>> sessions = Sessions(manager)
    >>> for turn in (1, 2):
    ...     _ = manager.admit(turn, range(8 * turn)), manager.commit(turn, 8 * turn)
    ...     sessions.admitted("chat", turn)
    ...     sessions.releasing(turn)
    ...     manager.release(turn)
    >>> sessions.end("chat")  # accepted, clipped and ignored blocks
    (4, 0, 0)
    >>> manager.retention.stats().demoted
    4
    """

    def __init__(self, manager: CacheManager, limit: int = 4096) -> None:
        if limit < 1:
            raise InvalidArgumentError(f"limit is {limit}: must be at least 1")
        self._manager, self._limit = manager, limit
        #: Maps a session to its live requests, and to the hash chain of its most recently released
        #: request.
        self._known: OrderedDict[str, tuple[dict[RequestId, None], Any]] = OrderedDict()
        self._of: dict[RequestId, str] = {}

    def __len__(self) -> int:
        return len(self._known)

    def admitted(self, session_id: str, request_id: RequestId) -> None:
        """Records that a request of a session was admitted."""
        live, last = self._known.pop(session_id, ({}, None))
        live[request_id] = None
        self._known[session_id] = (live, last)
        self._of[request_id] = session_id
        while len(self._known) > self._limit:
            _, (forgotten, _) = self._known.popitem(last=False)
            for one in forgotten:
                self._of.pop(one, None)

    def releasing(self, request_id: RequestId) -> None:
        """Records that a request is about to be released. Its cached content then belongs to its session.

        Does nothing for a request without a session.
        """
        session_id = self._of.pop(request_id, None)
        if session_id is None:
            return
        live, last = self._known[session_id]
        live.pop(request_id, None)
        # If the manager does not know the request, the session keeps its earlier content.
        with contextlib.suppress(KvpoolError):
            last = self._manager.prepare(request_id)
        self._known[session_id] = (live, last)

    def end(self, session_id: str) -> tuple[int, int, int]:
        """Ends a session. From now on, its cached blocks without references are evicted first.

        Returns:
            The numbers of blocks on which this took full effect, partial effect, and no effect. All are
            0 for an unknown session.
        """
        live, last = self._known.pop(session_id, ({}, None))
        reports = []
        for request_id in live:
            self._of.pop(request_id, None)
            if request_id in self._manager:
                reports.append(self._manager.retention.end_of_life(request_id))
        if last is not None:
            # Content from before the last change of weights cannot be hit any more, so it is skipped.
            with contextlib.suppress(StaleEpochError):
                reports.append(self._manager.retention.end_of_life(last))
        return (
            sum(report.accepted for report in reports),
            sum(report.clipped for report in reports),
            sum(report.ignored for report in reports),
        )
