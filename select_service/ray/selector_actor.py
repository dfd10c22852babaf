"""Actor of a selector: starts, connects and watches the service.

The service is a separate process with event loop, threads and kernels. If the actor or the service
ends, the other ends too, and Ray restarts the actor on this or another node. The restarted service
takes index and workers from the other selectors.
"""

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from subprocess import TimeoutExpired

import ray

from select_service.net.http_client.http_error import HttpError
from select_service.ray.child_process import (
    POLL_S,
    START_S_MAX,
    launch_service,
    serves_tls,
    take_port,
)
from select_service.ray.credentials import Credentials
from select_service.ray.deployment_members import SelectorAddress, fetch_addresses, list_members
from select_service.ray.exposure import exposing_flags
from select_service.ray.selector_client import SingleSelector
from select_service.schemas.replicas import ReplicaPeerRequest

WATCH_INTERVAL_S = 1.0
"""Time between two checks of the service and the replicas, in seconds."""
PEERS_S_MAX = 2.0
"""Time limit for the addresses of the others, in seconds; the next turn asks restarting actors
again.
"""
HUNG_S = 30.0
"""Time without an answer after which the service and the actor are ended, in seconds."""

log = logging.getLogger("select_service.ray")


class SelectorActor:
    """Ray actor that lives as long as the service."""

    def __init__(
        self,
        deployment: str,
        port: int,
        flags: tuple[str, ...],
        environment: dict[str, str],
        credentials: Credentials,
    ) -> None:
        """port: preferred HTTP port; the next port is for replica synchronization"""
        self._deployment, self._credentials = deployment, credentials
        context = ray.get_runtime_context()
        self._name = context.get_actor_name()
        self._peers: dict[str, str] = {}
        host, http_port, sync_port = (
            ray.util.get_node_ip_address(),
            take_port(port),
            take_port(port + 1),
        )
        scheme = "https" if serves_tls(flags, environment) else "http"
        self._address = SelectorAddress(
            f"{scheme}://{host}:{http_port}", f"tcp://{host}:{sync_port}", context.get_node_id()
        )
        others = self._other_addresses()
        places = self._address_flags(http_port, sync_port, others.values())
        exposing = exposing_flags(flags, environment)
        self._process = launch_service([*exposing, *places, *flags], environment)
        self._own_selector = SingleSelector(self._address.url, credentials)
        self._wait_until_healthy()
        self._connect_peers(others)
        self._copy_workers(others.values())
        threading.Thread(target=self._watch_service, name="tend", daemon=True).start()

    def address(self) -> SelectorAddress:
        """Return the address of the service, which answers there."""
        return self._address

    def _address_flags(
        self, http_port: int, sync_port: int, others: Iterable[SelectorAddress]
    ) -> list[str]:
        # Engines may run on this node, which Ray may know by its loopback address.
        flags = ["--connect-to-loopback"]
        flags += ["--port", str(http_port), "--replica-sync-port", str(sync_port)]
        flags += ["--advertise-url", self._address.url]
        if self._credentials.api_key_file is not None:
            flags += ["--peer-api-key-file", self._credentials.api_key_file]
        if self._credentials.ca_file is not None:
            flags += ["--tls-ca", self._credentials.ca_file]
        urls = ",".join(other.url for other in others)
        return [*flags, "--indexer-peers", urls] if urls else flags

    def _other_addresses(self) -> dict[str, SelectorAddress]:
        names = (name for name in list_members(self._deployment) if name != self._name)
        return fetch_addresses(names, PEERS_S_MAX)

    def _wait_until_healthy(self) -> None:
        until = time.monotonic() + START_S_MAX
        while not self._own_selector.is_healthy():
            if self._process.poll() is not None:
                raise RuntimeError(
                    f"the service ended with status {self._process.returncode}: see its log"
                )
            if time.monotonic() > until:
                self._process.kill()
                raise RuntimeError(
                    f"the service did not answer within {START_S_MAX:.0f} s: see its log"
                )
            time.sleep(POLL_S)

    def _copy_workers(self, others: Iterable[SelectorAddress]) -> None:
        """Copy the workers of the other selectors, registered before this selector started."""
        for other in others:
            with suppress(HttpError), SingleSelector(other.url, self._credentials) as peer:
                known = self._own_selector.registration_states()
                for worker_id, worker in peer.registered_workers().items():
                    if worker_id not in known:
                        self._own_selector.register(worker)

    def _connect_peers(self, others: Mapping[str, SelectorAddress]) -> None:
        """Receive from all others at the current addresses; an actor without an answer may still
        return.
        """
        for name, other in others.items():
            endpoint, old = other.sync_endpoint, self._peers.get(name)
            if endpoint == old:
                continue
            # The new endpoint first, so that no event is missed while the old endpoint is dropped.
            self._own_selector.register_peer(ReplicaPeerRequest(endpoint=endpoint))
            if old is not None:
                self._own_selector.deregister_peer(ReplicaPeerRequest(endpoint=old))
            self._peers[name] = endpoint

    def _drop_gone_peers(self) -> None:
        for name in self._peers.keys() - list_members(self._deployment):
            gone = ReplicaPeerRequest(endpoint=self._peers[name])
            self._own_selector.deregister_peer(gone)
            del self._peers[name]

    def _watch_service(self) -> None:
        """Watch the service; after an end or hang, end the actor's process, which Ray restarts."""
        answered = time.monotonic()
        while time.monotonic() - answered < HUNG_S:
            with suppress(TimeoutExpired):
                # Doubles as the pause between two turns.
                self._process.wait(WATCH_INTERVAL_S)
                break
            if not self._own_selector.is_healthy():
                continue
            answered = time.monotonic()
            try:
                self._connect_peers(self._other_addresses())
                self._drop_gone_peers()
            except (
                Exception
            ):  # raised by Ray's control plane or by the service; the next turn tries again
                log.exception("replica lookup failed")
        log.error("service ended or hung, ending the actor")
        self._process.kill()
        # Not sys.exit, which in a thread would end the thread only.
        os._exit(1)
