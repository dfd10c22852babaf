"""CURVE keys of replicas: permitted subscribers, and the key that must answer at a peer.

The file of public keys is checked once a second.  An invalid file changes nothing; the log and the
status report the error until the file is valid again.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import zmq

from indexer.sockets.curve_keypairs import CurveServerKeys, binding_options
from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.adapters.reload.file_watch import FileWatch
from select_service.adapters.replicas.zap_authenticator import ZAP_DOMAIN, ZapAuthenticator
from select_service.auth.keys_file import read_replica_keys
from select_service.auth.replica_keypair import ReplicaKeypair
from select_service.auth.replica_keys_schema import ReplicaKey, ReplicaKeys

LOOK_S = 1.0
"""Interval of checks of the file, in seconds."""

log = logging.getLogger("select_service.replicas")


class CurvePeers(FileWatch):
    """Key table of replicas, reloaded from its file.  Belongs to the thread of the event loop."""

    def __init__(self, keys: ReplicaKeypair, changed: Callable[[frozenset[str]], None]) -> None:
        """changed: callback after a change of the file, with the public keys that were removed"""
        self._own_pair, self._path, self._replica_keys = keys
        super().__init__("replica_keys_file", [self._path], LOOK_S)
        self._changed = changed
        self._authenticator: ZapAuthenticator | None = None
        self.error: str | None = None
        """Error of the current file; None means the file is valid and in use."""

    def install_authenticator(
        self, context: "zmq.Context[zmq.Socket[bytes]]", callbacks: GuardedCallbacks
    ) -> dict[int, Any]:
        """Install the ZAP handler; return the options for a socket to be bound.

        Raises zmq.ZMQError.
        """
        self._authenticator = ZapAuthenticator(
            context, lambda key: key in self._replica_keys.public_keys, callbacks
        )
        return binding_options(self._own_pair, ZAP_DOMAIN.encode())

    def start(self) -> asyncio.Task[None]:
        """Start the ZAP handler and the file watcher; see FileWatch."""
        if self._authenticator is not None:
            self._authenticator.start(asyncio.get_running_loop())
        return super().start()

    def background_tasks(self) -> list[asyncio.Task[None]]:
        """Return the file watcher task, which runs until `close`."""
        return [] if self._task is None else [self._task]

    def close(self) -> None:
        """Stop the file watcher and the ZAP handler, without waiting."""
        if self._task is not None:
            self._task.cancel()
        self.files.close()
        if self._authenticator is not None:
            self._authenticator.close()

    def find_replica(self, endpoint: str, name: str | None) -> ReplicaKey | None:
        """Return the replica expected at an endpoint: by name if given, else by its endpoint."""
        return self._replica_keys.find(endpoint, name)

    def curve_server(self, replica: ReplicaKey) -> CurveServerKeys:
        """Return the CURVE keys for a connection to a replica."""
        return CurveServerKeys(replica.public_key.encode(), self._own_pair)

    async def _reload_files(self) -> None:
        try:
            known = await self.files.read_on_thread(lambda: read_replica_keys(self._path))
        except ValueError as error:
            self._keep_previous(str(error))
        else:
            self._apply_keys(known)

    def _keep_previous(self, error: str) -> None:
        self.error = error
        fields = {"path": str(self._path), "error": error, "kept": len(self._replica_keys.by_name)}
        text = "replica keys file is invalid; keeping the previous keys"
        log.error(text, extra={"fields": fields})

    def _apply_keys(self, known: ReplicaKeys) -> None:
        was_wrong, self.error = self.error is not None, None
        old, self._replica_keys = self._replica_keys, known
        # A recovery from an error is worth a line even if the content is the same as before.
        if old.by_name == known.by_name and not was_wrong:
            return
        fields = {"path": str(self._path), "replicas": sorted(known.by_name)}
        log.info("replica keys reloaded", extra={"fields": fields})
        self._changed(old.public_keys - known.public_keys)
