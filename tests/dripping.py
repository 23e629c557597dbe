"""A server whose answer never ends: it sends one byte after another until its client disconnects."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds between two bytes. It is far below the timeout of a single read, so no single read is too
#: slow.
PACE = 0.02


@contextlib.contextmanager
def dripping(begin: bytes, drip: bytes = b"", *, pace: float = PACE) -> Iterator[int]:
    """Runs the server and yields its port. After a client's request, it sends ``begin``, and then
    ``drip`` again and again.

    Without ``drip`` the answer ends after ``begin``. Without both the server sends nothing.
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
                    # Pause before the next byte. Without ``drip``, wait as long as the client is
                    # connected. End if the client disconnects.
                    with contextlib.suppress(TimeoutError):
                        if pace and not peer.recv(1 << 16):
                            return

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        # Wake the server's thread that waits for connections, so that it ends.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
