"""One selector: an actor that starts the service, joins it with its replicas and watches it.

The service is a process of its own, because it is made to be one: its event loop, its threads and
its kernels share nothing with Ray's worker.  Whichever of the two ends, the other one follows, and
Ray starts the actor anew, here or on another node.  It then takes the index and the workers from
the others, and finds out by itself where they are.
"""

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from subprocess import TimeoutExpired

import httpx
import ray

from select_service.ray.credentials import Credentials
from select_service.ray.exposure import exposing_flags
from select_service.ray.members import Address, addresses, members
from select_service.ray.one_selector import OneSelector
from select_service.ray.process import POLL_S, START_S_MAX, launch, serves_tls, take_port

TEND_S = 1.0
"""Between two looks at who the replicas are and how the service is."""
PEERS_S_MAX = 2.0
"""How long others may take to say where they are; a restarting one is asked in the next turn."""
HUNG_S = 30.0
"""A service that has not answered for so long is ended, and with it the actor."""

log = logging.getLogger("select_service.ray")


class SelectorActor:
    """Lives as long as its service does."""

    def __init__(
        self,
        deployment: str,
        port: int,
        flags: tuple[str, ...],
        environment: dict[str, str],
        credentials: Credentials,
    ) -> None:
        """port: preferred for HTTP; the one after it for what replicas tell each other."""
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
        self._address = Address(
            f"{scheme}://{host}:{http_port}", f"tcp://{host}:{sync_port}", context.get_node_id()
        )
        others = self._others()
        places = self._places(http_port, sync_port, others.values())
        exposing = exposing_flags(flags, environment)
        self._process = launch([*exposing, *places, *flags], environment)
        self._own = OneSelector(self._address.url, credentials)
        self._wait_until_healthy()
        self._join(others)
        self._register_what_others_know(others.values())
        threading.Thread(target=self._tend, name="tend", daemon=True).start()

    def address(self) -> Address:
        """Where the service is; it answers there."""
        return self._address

    def _places(self, http_port: int, sync_port: int, others: Iterable[Address]) -> list[str]:
        # Engines may be on its own node, which Ray perhaps knows by its loopback address.
        flags = ["--connect-to-loopback"]
        flags += ["--port", str(http_port), "--replica-sync-port", str(sync_port)]
        flags += ["--advertise-url", self._address.url]
        if self._credentials.api_key_file is not None:
            flags += ["--peer-api-key-file", self._credentials.api_key_file]
        if self._credentials.ca_file is not None:
            flags += ["--tls-ca", self._credentials.ca_file]
        urls = ",".join(other.url for other in others)
        return [*flags, "--indexer-peers", urls] if urls else flags

    def _others(self) -> dict[str, Address]:
        names = (name for name in members(self._deployment) if name != self._name)
        return addresses(names, PEERS_S_MAX)

    def _wait_until_healthy(self) -> None:
        until = time.monotonic() + START_S_MAX
        while not self._own.is_healthy():
            if self._process.poll() is not None:
                raise RuntimeError(f"the service ended with status {self._process.returncode}")
            if time.monotonic() > until:
                self._process.kill()
                raise RuntimeError(f"the service did not answer within {START_S_MAX:.0f} s")
            time.sleep(POLL_S)

    def _register_what_others_know(self, others: Iterable[Address]) -> None:
        """Workers are told to those selectors that are there; this one may not have been."""
        for other in others:
            with suppress(httpx.HTTPError), OneSelector(other.url, self._credentials) as peer:
                known = self._own.known()
                for worker_id, worker in peer.workers().items():
                    if worker_id not in known:
                        self._own.register(worker)

    def _join(self, others: Mapping[str, Address]) -> None:
        """Listen to all others at where they are now.  Who does not answer may come back there."""
        for name, other in others.items():
            endpoint, old = other.sync_endpoint, self._peers.get(name)
            if endpoint == old:
                continue
            self._own.add_peer(endpoint)
            if old is not None:
                self._own.drop_peer(old)
            self._peers[name] = endpoint

    def _leave_gone(self) -> None:
        for name in self._peers.keys() - members(self._deployment):
            self._own.drop_peer(self._peers[name])
            del self._peers[name]

    def _tend(self) -> None:
        """Until the service ends, or hangs; then the actor's process ends, and Ray starts anew."""
        answered = time.monotonic()
        while time.monotonic() - answered < HUNG_S:
            with suppress(TimeoutExpired):
                self._process.wait(TEND_S)
                break
            if not self._own.is_healthy():
                continue
            answered = time.monotonic()
            try:
                self._join(self._others())
                self._leave_gone()
            except Exception:  # of Ray's control plane or of the service: the next turn tries again
                log.exception("replicas could not be looked up")
        log.error("the service ended or hung; the actor ends")
        self._process.kill()
        os._exit(1)
