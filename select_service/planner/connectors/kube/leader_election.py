"""Leader election of planners: the holder of one `coordination.k8s.io` lease acts.

As in client-go no foreign clock is trusted: a lease is free after its duration without a change, by
the local clock.  A holder stops acting 10 s after the start of its last renewal, others wait for 15
s after seeing the renewal, and a write takes at most 4 s. So never do two planners act.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic, time
from urllib.parse import quote

import msgspec

from select_service.net.kubernetes_session import KubernetesError
from select_service.planner.connectors.kube.api_requests import (
    CONFLICT,
    NOT_FOUND,
    REQUEST_TIMEOUT_S,
    KubernetesApi,
    read_object,
)
from select_service.planner.connectors.kube.objects import LeaseObject, LeaseSpec

log = logging.getLogger("select_service.planner.connectors")

DURATION_S = 15
RENEW_DEADLINE_S = 10.0
RETRY_S = 2.0
# Safety of the election: the last write of a leader ends before any other may begin.
assert RENEW_DEADLINE_S + REQUEST_TIMEOUT_S < DURATION_S


class LeaderElection:
    """Election by a lease, shared by all deployments of this planner that name the lease.

    api:      own connection, closed with the last user
    identity: unique among planners
    clock:    monotonic seconds
    """

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        name: str,
        identity: str,
        *,
        clock: Callable[[], float] = monotonic,
        wall: Callable[[], float] = time,
    ) -> None:
        self._api = api
        self._namespace, self._name, self._identity = namespace, name, identity
        self._clock, self._wall = clock, wall
        self._seen: tuple[LeaseSpec, float] | None = None
        self._renewed_at: float | None = None
        self.holder = ""
        self.error = ""
        self.terms = 0
        """Number of acquisitions from another state: others may have acted before each."""
        # A deleted lease may have been held by another planner in between.
        self._was_others = True
        self._users = 0
        self._stepping = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    def join_election(self) -> None:
        """Add a deployment, which must leave once."""
        self._users += 1

    async def leave_election(self) -> None:
        """Remove a deployment; the last one releases the lease."""
        self._users -= 1
        if self._users:
            return
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        await self.release_lease()
        await self._api.close()

    def start_renewing(self) -> None:
        """Start to renew, or to try for, the lease in the background."""
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew_forever(), name=f"lease {self._name}")

    async def try_to_lead(self) -> bool:
        """Return whether this planner leads or can lead at once; starts the renewal."""
        self.start_renewing()
        if self.is_leader:
            return True
        async with self._stepping:
            return self.is_leader or await self._try_and_update()

    @property
    def is_leader(self) -> bool:
        """Whether this planner may still start a write."""
        renewed = self._renewed_at
        return renewed is not None and self._clock() - renewed < RENEW_DEADLINE_S

    @property
    def is_ours(self) -> bool:
        """Whether no other planner is known to hold the lease."""
        return self.holder in ("", self._identity)

    async def _renew_forever(self) -> None:
        """Renew or try until cancelled; the first attempt is the caller's."""
        while True:
            await asyncio.sleep(RETRY_S)
            await self.try_once()

    async def try_once(self) -> bool:
        """Try once and return whether this planner leads.

        Serialised, as concurrent writes would conflict.
        """
        async with self._stepping:
            return await self._try_and_update()

    async def _try_and_update(self) -> bool:
        """Try once, and update the term."""
        # The deadline counts from before the request: the server may have stored the renewal right
        # away, and others count from then.
        before, began = self.is_leader, self._clock()
        try:
            renewed = await self._read_and_write(began)
            self.error = ""
        except KubernetesError as error:
            self.error, renewed = str(error), False
        if renewed:
            self._renewed_at = began
            # Counted only after a foreign holder, so that our own short interruptions keep the
            # rollout.
            self.terms += self._was_others
            self._was_others = False
        elif self.holder and self.holder != self._identity:
            self._renewed_at = None
        if before != self.is_leader:
            fields = {"lease": self._name, "holder": self.holder, "leads": self.is_leader}
            log.info("leadership changed", extra={"fields": fields})
        return self.is_leader

    async def _read_and_write(self, now: float) -> bool:
        """Read the lease and write it if free or own. Raises KubernetesError."""
        try:
            lease = await read_object(
                self._api, f"{self._leases_path}/{quote(self._name)}", LeaseObject
            )
        except KubernetesError as error:
            if error.status != NOT_FOUND:
                raise
            self._was_others = True
            return await self._write_lease("POST", self._leases_path, None)
        # Only changes are timed, with the local clock: the times in the lease come from foreign
        # clocks.
        if self._seen is None or self._seen[0] != lease.spec:
            self._seen = lease.spec, now
        self.holder = lease.spec.holder_identity or ""
        self._was_others |= self.holder != self._identity
        duration = lease.spec.lease_duration_seconds or DURATION_S
        is_free = not self.holder or now - self._seen[1] >= duration
        if self.holder != self._identity and not is_free:
            return False
        return await self._write_lease("PUT", f"{self._leases_path}/{quote(self._name)}", lease)

    @property
    def _leases_path(self) -> str:
        """Path of the leases."""
        namespace = quote(self._namespace)
        return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    async def _write_lease(
        self, method: str, path: str, lease: LeaseObject | None, free: bool = False
    ) -> bool:
        """Write the lease. False if another planner was faster.  Raises KubernetesError."""
        old = LeaseSpec() if lease is None else lease.spec
        stamp = datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_same = old.holder_identity == self._identity
        spec = LeaseSpec(
            holder_identity="" if free else self._identity,
            # client-go treats an empty holder as free at once; other clients wait for the duration.
            lease_duration_seconds=1 if free else DURATION_S,
            acquire_time=old.acquire_time if is_same else stamp,
            renew_time=stamp,
            lease_transitions=(old.lease_transitions or 0) + (lease is not None and not is_same),
        )
        metadata = {"name": self._name, "namespace": self._namespace}
        if lease is not None:
            # Optimistic locking: of two planners that see a free lease, one gets a conflict.
            metadata["resourceVersion"] = lease.metadata.resource_version
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": msgspec.to_builtins(spec),
        }
        try:
            await self._api.call(method, path, body)
        except KubernetesError as error:
            if error.status != CONFLICT:
                raise
            return False
        self.holder = "" if free else self._identity
        return not free

    async def release_lease(self) -> None:
        """Free the lease at once; without success it expires."""
        if not self.is_leader:
            return
        self._renewed_at = None
        try:
            lease = await read_object(
                self._api, f"{self._leases_path}/{quote(self._name)}", LeaseObject
            )
            if lease.spec.holder_identity == self._identity:
                await self._write_lease(
                    "PUT", f"{self._leases_path}/{quote(self._name)}", lease, free=True
                )
        except KubernetesError as error:
            self.error = str(error)


class LeaderElections:
    """Elections of a process, one for each lease."""

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._by_lease: dict[tuple[str, str], LeaderElection] = {}

    def election_for(
        self, namespace: str, name: str, open_api: Callable[[], KubernetesApi]
    ) -> LeaderElection:
        """Return the election of this lease, created at its first use."""
        if (namespace, name) not in self._by_lease:
            election = LeaderElection(open_api(), namespace, name, self._identity)
            self._by_lease[namespace, name] = election
        return self._by_lease[namespace, name]
