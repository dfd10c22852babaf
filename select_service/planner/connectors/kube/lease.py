"""Who of several planners acts: the holder of one `coordination.k8s.io` lease.

As in client-go nobody's clock is trusted: a lease is free when it has not changed for its duration,
by our own clock.  A holder stops to act 10 s after the beginning of its last renewal, others wait
for 15 s after they have seen it, and a write takes 4 s at most: never do two act.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic, time
from urllib.parse import quote

import msgspec

from select_service.planner.connectors.kube.api import (
    CONFLICT,
    NOT_FOUND,
    REQUEST_TIMEOUT_S,
    Api,
    KubeError,
    read,
)
from select_service.planner.connectors.kube.bodies import Lease, LeaseSpec

log = logging.getLogger("select_service.planner.connectors")

DURATION_S = 15
RENEW_DEADLINE_S = 10.0
RETRY_S = 2.0
assert RENEW_DEADLINE_S + REQUEST_TIMEOUT_S < DURATION_S


class Election:
    """One lease, for all deployments of this planner that name it.

    api: its own, closed with the last user.  identity: no two planners may have the same.  clock:
    monotonic seconds.
    """

    def __init__(
        self,
        api: Api,
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
        """How often we have got the lease when it was not ours: others may have acted between."""
        self._was_others = True
        self._users = 0
        self._stepping = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    def join(self) -> None:
        """One more deployment; it says `leave` once."""
        self._users += 1

    async def leave(self) -> None:
        """The lease is given back with the last one."""
        self._users -= 1
        if self._users:
            return
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        await self.release()
        await self._api.close()

    def stand(self) -> None:
        """Renewed from now on, or tried for."""
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew(), name=f"lease {self._name}")

    async def leads(self) -> bool:
        """Are we the leader, or can we be at once?  Renewed from then on."""
        self.stand()
        if self.is_leader:
            return True
        async with self._stepping:
            return self.is_leader or await self._stepped()

    @property
    def is_leader(self) -> bool:
        """May we still begin to write?"""
        renewed = self._renewed_at
        return renewed is not None and self._clock() - renewed < RENEW_DEADLINE_S

    @property
    def is_ours(self) -> bool:
        """As far as we know, has nobody else got it?"""
        return self.holder in ("", self._identity)

    async def _renew(self) -> None:
        """Or try to get it, until it is cancelled; the first `step` is the caller's."""
        while True:
            await asyncio.sleep(RETRY_S)
            await self.step()

    async def step(self) -> bool:
        """Try once.  Are we the leader now?  One after the other, as they would conflict."""
        async with self._stepping:
            return await self._stepped()

    async def _stepped(self) -> bool:
        before, began = self.is_leader, self._clock()
        try:
            renewed = await self._tried(began)
            self.error = ""
        except KubeError as error:
            self.error, renewed = str(error), False
        if renewed:
            self._renewed_at = began
            self.terms += self._was_others
            self._was_others = False
        elif self.holder and self.holder != self._identity:
            self._renewed_at = None
        if before != self.is_leader:
            fields = {"lease": self._name, "holder": self.holder, "leads": self.is_leader}
            log.info("the leading planner has changed", extra={"fields": fields})
        return self.is_leader

    async def _tried(self, now: float) -> bool:
        """Raises KubeError."""
        try:
            lease = await read(self._api, f"{self._path}/{quote(self._name)}", Lease)
        except KubeError as error:
            if error.status != NOT_FOUND:
                raise
            self._was_others = True
            return await self._write("POST", self._path, None)
        if self._seen is None or self._seen[0] != lease.spec:
            self._seen = lease.spec, now
        self.holder = lease.spec.holder_identity or ""
        self._was_others |= self.holder != self._identity
        duration = lease.spec.lease_duration_seconds or DURATION_S
        is_free = not self.holder or now - self._seen[1] >= duration
        if self.holder != self._identity and not is_free:
            return False
        return await self._write("PUT", f"{self._path}/{quote(self._name)}", lease)

    @property
    def _path(self) -> str:
        namespace = quote(self._namespace)
        return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    async def _write(self, method: str, path: str, lease: Lease | None, free: bool = False) -> bool:
        """False: somebody else was faster.  Raises KubeError."""
        old = LeaseSpec() if lease is None else lease.spec
        stamp = datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_same = old.holder_identity == self._identity
        spec = LeaseSpec(
            holder_identity="" if free else self._identity,
            lease_duration_seconds=1 if free else DURATION_S,
            acquire_time=old.acquire_time if is_same else stamp,
            renew_time=stamp,
            lease_transitions=(old.lease_transitions or 0) + (lease is not None and not is_same),
        )
        metadata = {"name": self._name, "namespace": self._namespace}
        if lease is not None:
            metadata["resourceVersion"] = lease.metadata.resource_version
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": msgspec.to_builtins(spec),
        }
        try:
            await self._api.call(method, path, body)
        except KubeError as error:
            if error.status != CONFLICT:
                raise
            return False
        self.holder = "" if free else self._identity
        return not free

    async def release(self) -> None:
        """Let somebody else have it at once; where that cannot be said it ends by itself."""
        if not self.is_leader:
            return
        self._renewed_at = None
        try:
            lease = await read(self._api, f"{self._path}/{quote(self._name)}", Lease)
            if lease.spec.holder_identity == self._identity:
                await self._write("PUT", f"{self._path}/{quote(self._name)}", lease, free=True)
        except KubeError as error:
            self.error = str(error)


class Elections:
    """Of one process: one election a lease."""

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._by_lease: dict[tuple[str, str], Election] = {}

    def of(self, namespace: str, name: str, open_api: Callable[[], Api]) -> Election:
        """That of the deployments that have named the same before, else a new one."""
        if (namespace, name) not in self._by_lease:
            election = Election(open_api(), namespace, name, self._identity)
            self._by_lease[namespace, name] = election
        return self._by_lease[namespace, name]
