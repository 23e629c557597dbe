"""A server whose answer never ends: it sends one byte after another until its client disconnects."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds between two bytes, far below any timeout of a single read.
PACE = 0.02


@contextlib.contextmanager
def dripping(begin: bytes, drip: bytes = b"", *, pace: float = PACE) -> Iterator[int]:
    """Yields the port. After a client's request, the server sends ``begin``, and then ``drip`` again
    and again.

    Without ``drip`` the answer ends after ``begin``. Without both the server stays silent.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(peer,), daemon=True).start()

        def answer(peer: socket.socket) -> None:
            with peer, contextlib.suppress(OSError):
                peer.recv(1 << 16)
                peer.sendall(begin)
                if begin and not drip:
                    return
                peer.settimeout(pace if drip else None)
                while True:
                    peer.sendall(drip)
                    # Wait for a client that sends nothing. If the client disconnects, this loop ends.
                    with contextlib.suppress(TimeoutError):
                        if pace and not peer.recv(1 << 16):
                            return

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        # Wake the thread that accepts connections.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
