"""ZAP handler of the replica protocol: decides by public key which replicas may subscribe.

libzmq asks over an in-process socket about the key of each new connection and continues only after
the answer.  An answer takes microseconds; requests wait until the event loop runs.
Source: https://rfc.zeromq.org/spec/27 (ZAP).
"""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

import zmq
from zmq.auth import Authenticator

from indexer.sockets.socket_poller import has_message
from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.adapters.logs.log_throttle import LogThrottle

ZAP_DOMAIN = "replicas"
ANSWERED_AT_ONCE = 16
"""Number of answers before the event loop gets a turn."""

log = logging.getLogger("select_service.replicas")


class ZapAuthenticator:
    """ZAP handler of one ZMQ context.  Belongs to the thread of the event loop."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        is_known: Callable[[str], bool],
        callbacks: GuardedCallbacks,
    ) -> None:
        """Install the handler.

        is_known: function that returns whether a public key (Z85) belongs to a permitted replica
        Create the handler before any socket is bound, since libzmq admits everyone without a
        handler.
        Raises zmq.ZMQError.
        """
        self._is_known, self._callbacks = is_known, callbacks
        self._episodes = LogThrottle()
        self._authenticator = Authenticator(context)
        self._authenticator.configure_curve_callback(ZAP_DOMAIN, self)
        self._authenticator.start()
        self._guarded_look = callbacks.guard_callback("replica_admission", self._start_answering)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer requests from now on."""
        self._loop = loop
        loop.add_reader(self._authenticator.zap_socket.FD, self._guarded_look)
        # Requests that arrived before the reader was added cause no further edge.
        loop.call_soon(self._guarded_look)

    def close(self) -> None:
        """Stop the handler; no further connection is admitted."""
        if self._authenticator.zap_socket is None:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._authenticator.zap_socket.FD)
        if self._task is not None:
            self._task.cancel()
        self._authenticator.stop()

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a key is permitted; called by pyzmq."""
        public = key.decode("ascii")
        is_known = self._is_known(public)
        if not is_known and self._episodes.begins_episode("refused", monotonic()):
            fields = {"public_key": public}
            log.warning("unknown replica key, subscription refused", extra={"fields": fields})
        return is_known

    def _start_answering(self) -> None:
        """Start the task that answers all pending requests; the descriptor is edge-triggered."""
        if self._loop is not None and (self._task is None or self._task.done()):
            self._task = self._loop.create_task(self._answer_requests())

    async def _answer_requests(self) -> None:
        socket, answered = self._authenticator.zap_socket, 0
        while not socket.closed and has_message(socket):
            try:
                await self._authenticator.handle_zap_message(socket.recv_multipart(zmq.NOBLOCK))
            except Exception:  # a library error must not leave other requests unanswered
                self._callbacks.record_failure("replica_admission")
            answered += 1
            if answered % ANSWERED_AT_ONCE == 0:
                await asyncio.sleep(0)
