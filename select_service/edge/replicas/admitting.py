"""EDGE: which replicas may listen to us, by their keys: the ZAP handler of the replica plane.

libzmq asks, over a socket inside the process, about the key of everybody who connects, and goes on
only when the answer has come.  An answer takes microseconds; before there is an event loop the
questions wait.  Source: https://rfc.zeromq.org/spec/27 (ZAP).
"""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

import zmq
from zmq.auth import Authenticator

from indexer.sockets.readiness import has_message
from select_service.edge.episodes import Episodes
from select_service.edge.supervised import Callbacks

ZAP_DOMAIN = "replicas"
ANSWERED_AT_ONCE = 16
"""Before requests have their turn."""

log = logging.getLogger("select_service.replicas")


class Admitting:
    """Belongs to one context, and to the thread of the event loop."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        is_known: Callable[[str], bool],
        callbacks: Callbacks,
    ) -> None:
        """is_known: is this public key, in Z85, that of a replica that may listen?

        To be made before a socket is bound, which would let everybody in.  Raises zmq.ZMQError.
        """
        self._is_known, self._callbacks = is_known, callbacks
        self._episodes = Episodes()
        self._authenticator = Authenticator(context)
        self._authenticator.configure_curve_callback(ZAP_DOMAIN, self)
        self._authenticator.start()
        self._look = callbacks.supervised("replica_admission", self._look_now)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer from now on."""
        self._loop = loop
        loop.add_reader(self._authenticator.zap_socket.FD, self._look)
        loop.call_soon(self._look)

    def close(self) -> None:
        """Nobody is let in any more."""
        if self._authenticator.zap_socket is None:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._authenticator.zap_socket.FD)
        if self._task is not None:
            self._task.cancel()
        self._authenticator.stop()

    def callback(self, domain: str, key: bytes) -> bool:
        """What the library asks."""
        public = key.decode("ascii")
        is_known = self._is_known(public)
        if not is_known and self._episodes.begins("refused", monotonic()):
            fields = {"public_key": public}
            log.warning("replica is not known and may not listen", extra={"fields": fields})
        return is_known

    def _look_now(self) -> None:
        """The descriptor tells of changes only; the task asks until nothing is left."""
        if self._loop is not None and (self._task is None or self._task.done()):
            self._task = self._loop.create_task(self._answer())

    async def _answer(self) -> None:
        socket, answered = self._authenticator.zap_socket, 0
        while not socket.closed and has_message(socket):
            try:
                await self._authenticator.handle_zap_message(socket.recv_multipart(zmq.NOBLOCK))
            except Exception:  # the library's, which would leave others without an answer
                self._callbacks.failed("replica_admission")
            answered += 1
            if answered % ANSWERED_AT_ONCE == 0:
                await asyncio.sleep(0)
