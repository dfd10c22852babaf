"""EDGE: the replica plane where keys are used: who may listen to us, and who answers where.

The file of public keys is looked at once a second.  One that is wrong changes nothing; the log and
the status say so until it is good again.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import zmq

from indexer.sockets.curve import CurveServer, binding_options
from select_service.access.keys_file import read_replica_keys
from select_service.access.plane_keys import PlaneKeys
from select_service.access.replica_keys import ReplicaKey, ReplicaKeys
from select_service.edge.file_changes import FileWatch
from select_service.edge.replicas.admitting import ZAP_DOMAIN, Admitting
from select_service.edge.supervised import Callbacks

LOOK_S = 1.0
"""Between two looks at the file."""

log = logging.getLogger("select_service.replicas")


class Keyed(FileWatch):
    """Belongs to the thread of the event loop."""

    def __init__(self, keys: PlaneKeys, changed: Callable[[frozenset[str]], None]) -> None:
        """changed: called when the file says something else, with the public keys that went"""
        self._own, self._path, self._known = keys
        super().__init__("replica_keys_file", [self._path], LOOK_S)
        self._changed = changed
        self._admitting: Admitting | None = None
        self.error: str | None = None
        """What is wrong with the file as it stands; None: what it says is what counts."""

    def admit(
        self, context: "zmq.Context[zmq.Socket[bytes]]", callbacks: Callbacks
    ) -> dict[int, Any]:
        """Let those in who are known.  Returns the options of a socket that is to be bound.

        Raises zmq.ZMQError.
        """
        self._admitting = Admitting(context, lambda key: key in self._known.public, callbacks)
        return binding_options(self._own, ZAP_DOMAIN.encode())

    def start(self) -> asyncio.Task[None]:
        """See FileWatch; those who may listen are let in from now on, too."""
        if self._admitting is not None:
            self._admitting.start(asyncio.get_running_loop())
        return super().start()

    def background(self) -> list[asyncio.Task[None]]:
        """What follows the file, until `close`."""
        return [] if self._task is None else [self._task]

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self.files.close()
        if self._admitting is not None:
            self._admitting.close()

    def find(self, endpoint: str, name: str | None) -> ReplicaKey | None:
        """Who is to answer at an endpoint: the replica of that name, else the one it belongs to."""
        return self._known.find(endpoint, name)

    def server(self, replica: ReplicaKey) -> CurveServer:
        return CurveServer(replica.public_key.encode(), self._own)

    async def _read(self) -> None:
        try:
            known = await self.files.read(lambda: read_replica_keys(self._path))
        except ValueError as error:
            self._keep(str(error))
        else:
            self._take(known)

    def _keep(self, error: str) -> None:
        self.error = error
        fields = {"path": str(self._path), "error": error, "kept": len(self._known.by_name)}
        log.error(
            "the file of replica keys is wrong; the keys before go on counting",
            extra={"fields": fields},
        )

    def _take(self, known: ReplicaKeys) -> None:
        was_wrong, self.error = self.error is not None, None
        old, self._known = self._known, known
        if old.by_name == known.by_name and not was_wrong:
            return
        fields = {"path": str(self._path), "replicas": sorted(known.by_name)}
        log.info("replica keys were read", extra={"fields": fields})
        self._changed(old.public - known.public)
