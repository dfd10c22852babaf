"""Requests to a deployment of Ray Serve go to the replica that the selectors choose.

    RequestRouterConfig(request_router_class="select_service.ray.router:SelectServiceRouter",
                        request_router_kwargs={"model_name": "qwen"})

A choice is a booking: Serve asks many times at once, and without bookings all of these requests
would go to the replica that is idle at that moment.  What Serve's routers have to live with:

* It asks again for a request whose replica was full or is gone: the former booking is given back,
  and another replica is chosen.
* Calls that a request makes of other deployments have the id of that request, and so have several
  of them to one deployment: what counts is the `PendingRequest`, never the id.
* A request may be cancelled before it was sent: then only its future tells.
* Without `should_backoff` Serve would ask again without a pause as long as all replicas are full.
"""

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from select_service.client import AsyncLease, Refused, SelectorError
from select_service.client.lease_fields import LeaseFields
from select_service.client.options import Options
from select_service.client.progress import Outcome
from select_service.ray.credentials import Credentials
from select_service.ray.fleet import NAME, found_by
from select_service.ray.found_selectors import FoundSelectors
from select_service.ray.one_selector import remove_everywhere
from select_service.ray.replica import worker_id_of

TOKENS = ("request_token_ids", "token_ids", "prompt_token_ids")
"""Names of arguments, or of fields of the first argument, with the prompt; the first is Ray's."""
OUTPUT_TOKENS = ("max_completion_tokens", "max_tokens")
DEADLINE_S = 1.0
"""How long a choice may take; then Serve chooses."""
LEFT_ALONE_S = 1.0
"""How long nobody asks again after no selector has answered in time."""
BOOKING_S_MAX = 3600.0
"""After which a booking is given back of whose request Serve has not told the end."""

log = logging.getLogger("ray.serve")


class Booking(NamedTuple):
    """A request that was, or is about to be, sent to the replica that was chosen for it."""

    request: PendingRequest
    replica_id: ReplicaID
    lease: AsyncLease
    until: float
    passed: frozenset[ReplicaID]
    """Replicas that were chosen for it before."""


class SelectServiceRouter(RequestRouter):  # type: ignore[misc]
    """One for each handle of the deployment, in the process of whoever has the handle."""

    def initialize_state(
        self,
        *,
        model_name: str = "default",
        tenant_id: str = "default",
        selectors: str | Sequence[str] = NAME,
        reservation_kwarg: str | None = None,
        deadline_s: float = DEADLINE_S,
        api_key_file: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        """selectors: the name with which they were deployed, or their URLs.

        reservation_kwarg: argument of the deployment's method in which a replica is told where to
            report, for `Report`; nothing is told when left out.
        api_key_file, ca_file: see `deploy`, on the node of whoever has the handle; the key needs
            the roles caller and operator.
        """
        self._credentials = Credentials(api_key_file, ca_file)
        self._urls = found_by(selectors)
        options: Options = {
            **self._credentials.options(),
            "model_name": model_name,
            "tenant_id": tenant_id,
            "deadline_s": deadline_s,
        }
        self._found = FoundSelectors(self._urls, **options)
        self._reservation_kwarg = reservation_kwarg
        self._bookings: OrderedDict[int, Booking] = OrderedDict()
        self._keys: dict[tuple[ReplicaID, str], list[int]] = {}
        self._asking: WeakKeyDictionary[Any, PendingRequest] = WeakKeyDictionary()
        self._left_alone_until = 0.0
        self._under_way: set[asyncio.Task[None]] = set()

    # --- what Serve calls

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The replica of the rank that was booked; where there is no booking, two by chance, of
        which Serve takes the one with the shorter queue."""
        if pending_request is None or not self._is_being_sent(pending_request):
            return two_by_chance(candidate_replicas)
        self._asking[asyncio.current_task()] = pending_request
        tokens = prompt_tokens(pending_request)
        if tokens is None:
            return two_by_chance(candidate_replicas)
        pending_request.routing_context.should_backoff = True
        passed = self._give_up(pending_request)
        candidates = {worker_id_of(r.replica_id.unique_id): r for r in candidate_replicas}
        allowed = [i for i, r in candidates.items() if r.replica_id not in passed]
        lease = await self._lease(tokens, allowed or list(candidates), pending_request)
        if lease is None:
            return two_by_chance(candidate_replicas)
        replica = candidates[lease.worker_id]
        former = passed if allowed else frozenset()
        until = time.monotonic() + BOOKING_S_MAX
        self._keep(
            Booking(
                pending_request, replica.replica_id, lease, until, former | {replica.replica_id}
            )
        )
        return [[replica]]

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Of requests with one id at one replica the oldest is as good as any."""
        keys = self._keys.get((replica_id, internal_request_id))
        if keys:
            self._end(keys[0], "ok")

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """What it had is over, and it is to be chosen no more."""
        super().on_replica_actor_died(replica_id)
        self._leave({replica_id}, "failure")

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Those that are gone leave the selectors, if they have not done so themselves."""
        before = set(self.curr_replicas)
        super().update_replicas(replicas)
        self._leave(before - set(self.curr_replicas), None)

    def _fulfill_next_pending_request(
        self, replica: RunningReplica, request_metadata: Any = None
    ) -> None:
        """The replica is for the request that it was chosen for.

        Serve would look for it by its id, find the first of several that share it, and never the
        others: their callers would wait for ever.
        """
        request = self._asking.get(asyncio.current_task())
        if request is None or request.metadata is not request_metadata:
            super()._fulfill_next_pending_request(replica, request_metadata)
        elif not request.future.done():
            self._record_queue_wait_time(request)
            request.future.set_result(replica)
            self._remove_pending_request_from_indices(request)

    def _is_being_sent(self, request: PendingRequest) -> bool:
        """Otherwise somebody only asks where it would go, and nobody would tell its end."""
        return request.future in self._routing_task_by_pending_request_future

    # --- bookings

    async def _lease(
        self, tokens: Sequence[int], allowed: list[int], request: PendingRequest
    ) -> AsyncLease | None:
        """None: no selector answers, or none knows any of these replicas."""
        if time.monotonic() < self._left_alone_until:
            return None
        fields: LeaseFields = {"token_ids": tokens, "allowed_worker_ids": allowed}
        expected = output_tokens(request)
        if expected is not None:
            fields["expected_output_tokens"] = expected
        try:
            client = await self._found.client()
            return await client.begin(**fields)
        except Refused as refused:
            log.debug("selectors refuse to choose: %s", refused)
        except (SelectorError, LookupError) as error:
            self._left_alone_until = time.monotonic() + LEFT_ALONE_S
            log.warning("Serve chooses by itself for now: %s", error)
        except Exception:  # Serve would never answer a request whose router has failed
            self._left_alone_until = time.monotonic() + LEFT_ALONE_S
            log.exception("Serve chooses by itself for now")
        return None

    def _keep(self, booking: Booking) -> None:
        """Until Serve says that the request is over, or that it will never be sent."""
        key, request = id(booking.request), booking.request
        self._bookings[key] = booking
        self._keys.setdefault(name_of(booking), []).append(key)
        if self._reservation_kwarg is not None:
            request.kwargs[self._reservation_kwarg] = {
                "reservation_id": booking.lease.reservation_id,
                "selector": booking.lease.selector,
                "block_size": booking.lease.block_size,
            }
        request.future.add_done_callback(lambda future: self._decided(key, future))
        while next(iter(self._bookings.values())).until < time.monotonic():
            self._end(next(iter(self._bookings)), None)

    def _decided(self, key: int, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self._end(key, None)

    def _give_up(self, request: PendingRequest) -> frozenset[ReplicaID]:
        """The former booking of a request that is asked about again.  Who was chosen so far."""
        if self._reservation_kwarg is not None:
            request.kwargs.pop(self._reservation_kwarg, None)
        former = self._bookings.get(id(request))
        if former is None:
            return frozenset()
        self._end(id(request), None)
        return former.passed

    def _end(self, key: int, outcome: Outcome) -> None:
        booking = self._bookings.pop(key, None)
        if booking is None:
            return
        booking.lease.end(outcome)
        name = name_of(booking)
        self._keys[name].remove(key)
        if not self._keys[name]:
            del self._keys[name]

    def _leave(self, gone: Collection[ReplicaID], outcome: Outcome) -> None:
        """Replicas that are gone, with all that was booked on them."""
        if not gone:
            return
        for key in [key for key, each in self._bookings.items() if each.replica_id in gone]:
            self._end(key, outcome)
        worker_ids = [worker_id_of(replica_id.unique_id) for replica_id in gone]
        removal = asyncio.to_thread(remove_everywhere, self._urls, worker_ids, self._credentials)
        task = self._event_loop.create_task(removal)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)


def name_of(booking: Booking) -> tuple[ReplicaID, str]:
    """By what Serve tells the end of its request."""
    return booking.replica_id, booking.request.metadata.internal_request_id


def two_by_chance(replicas: Sequence[RunningReplica]) -> list[list[RunningReplica]]:
    """What Serve does by itself: of the two it takes the one with the shorter queue."""
    return [random.sample(replicas, min(2, len(replicas)))] if replicas else []


def prompt_tokens(request: PendingRequest) -> Sequence[int] | None:
    """The token ids of a request; None: it shows none."""
    found = argument(request, TOKENS)
    return found if found is not None and len(found) > 0 else None


def output_tokens(request: PendingRequest) -> int | None:
    """How many tokens the answer may have; None: it does not say."""
    found = argument(request, OUTPUT_TOKENS)
    return found if isinstance(found, int) and found > 0 else None


def argument(request: PendingRequest, names: Sequence[str]) -> Any:
    """The first of these names that is an argument, or a field of the first argument."""
    first = request.args[0] if request.args else None
    for name in names:
        if request.kwargs.get(name) is not None:
            return request.kwargs[name]
        found = first.get(name) if isinstance(first, Mapping) else getattr(first, name, None)
        if found is not None:
            return found
    return None
