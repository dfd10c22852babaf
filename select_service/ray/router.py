"""Request router of Ray Serve that sends each request to the replica chosen by the selectors.

    RequestRouterConfig(request_router_class="select_service.ray.router:SelectServiceRouter",
                        request_router_kwargs={"model_name": "qwen"})

Each choice is a reservation: Serve routes many requests at once, and without reservations all of
them would go to the replica that is idle at that moment. Properties of Serve's routing:

* Serve routes a request again if its replica was full or is gone: the former reservation is freed
  and another replica is chosen.
* Calls to other deployments carry the id of the original request, and several calls to one
  deployment share the id: the key is the `PendingRequest`, never the id.
* A request may be cancelled before the send; then only its future shows the cancellation.
* Without `should_backoff` Serve would retry without a pause while all replicas are full.
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
from select_service.client.client_options import Options
from select_service.client.lease_fields import LeaseFields
from select_service.client.lease_progress import Outcome
from select_service.ray.credentials import Credentials
from select_service.ray.deployment import NAME, make_lookup
from select_service.ray.discovered_selectors import DiscoveredSelectors
from select_service.ray.replica import worker_id_of
from select_service.ray.selector_client import remove_everywhere

TOKENS = ("request_token_ids", "token_ids", "prompt_token_ids")
"""Names of arguments, or of fields of the first argument, with the prompt; the first is Ray's."""
OUTPUT_TOKENS = ("max_completion_tokens", "max_tokens")
DEADLINE_S = 1.0
"""Time limit of a choice, in seconds; afterwards Serve chooses."""
UNAVAILABLE_PAUSE_S = 1.0
"""Time without calls to selectors after no selector has answered, in seconds."""
RESERVATION_S_MAX = 3600.0
"""Time after which a reservation is freed although Serve has not reported the end, in seconds."""

log = logging.getLogger("ray.serve")


class RoutedRequest(NamedTuple):
    """A request and the replica reserved for its execution.

    release_at: time of the forced release, in seconds of time.monotonic()
    """

    request: PendingRequest
    replica_id: ReplicaID
    lease: AsyncLease
    release_at: float
    earlier_replicas: frozenset[ReplicaID]
    """Replicas that were chosen earlier for the same request."""


class SelectServiceRouter(RequestRouter):  # type: ignore[misc]
    """Router of a deployment handle, in the process of the handle."""

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
        """Store the arguments of `request_router_kwargs`.

        selectors: name of the deployment of selectors, or their URLs.
        reservation_kwarg: argument of the deployment's method that receives the data for `Report`;
            None means no reports.
        api_key_file, ca_file: see `deploy`, on the node of the handle; the key needs the roles
            caller and operator.
        """
        self._credentials = Credentials(api_key_file, ca_file)
        self._urls = make_lookup(selectors)
        options: Options = {
            **self._credentials.client_options(),
            "model_name": model_name,
            "tenant_id": tenant_id,
            "deadline_s": deadline_s,
        }
        self._selectors = DiscoveredSelectors(self._urls, **options)
        self._reservation_kwarg = reservation_kwarg
        self._routed: OrderedDict[int, RoutedRequest] = OrderedDict()
        self._keys: dict[tuple[ReplicaID, str], list[int]] = {}
        self._request_of_task: WeakKeyDictionary[Any, PendingRequest] = WeakKeyDictionary()
        self._unavailable_until = 0.0
        self._removal_tasks: set[asyncio.Task[None]] = set()

    # Methods that Serve calls

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replica of the reserved rank.

        Without a reservation, return two random replicas, of which Serve takes the shorter queue.
        """
        if pending_request is None or not self._is_being_sent(pending_request):
            return two_random_replicas(candidate_replicas)
        # Serve passes no request to `_fulfill_next_pending_request`; the task identifies the
        # request.
        self._request_of_task[asyncio.current_task()] = pending_request
        tokens = prompt_tokens(pending_request)
        if tokens is None:
            return two_random_replicas(candidate_replicas)
        # Otherwise Serve retries without a pause while the chosen replica is full.
        pending_request.routing_context.should_backoff = True
        passed = self._end_former_lease(pending_request)
        candidates = {worker_id_of(r.replica_id.unique_id): r for r in candidate_replicas}
        allowed = [i for i, r in candidates.items() if r.replica_id not in passed]
        # After all replicas were tried, any replica may be chosen again.
        lease = await self._begin_lease(tokens, allowed or list(candidates), pending_request)
        if lease is None:
            return two_random_replicas(candidate_replicas)
        replica = candidates[lease.worker_id]
        # All replicas were tried, so a new round begins.
        former = passed if allowed else frozenset()
        until = time.monotonic() + RESERVATION_S_MAX
        self._keep_lease(
            RoutedRequest(
                pending_request, replica.replica_id, lease, until, former | {replica.replica_id}
            )
        )
        return [[replica]]

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """End a lease. Requests of one id at one replica are equal, so the oldest lease ends."""
        keys = self._keys.get((replica_id, internal_request_id))
        if keys:
            self._end_lease(keys[0], "ok")

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """End all leases of a dead replica and remove the replica from the selectors."""
        super().on_replica_actor_died(replica_id)
        self._drop_replicas({replica_id}, "failure")

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Remove replicas that are gone from the selectors, if still registered."""
        before = set(self.curr_replicas)
        super().update_replicas(replicas)
        self._drop_replicas(before - set(self.curr_replicas), None)

    def _fulfill_next_pending_request(
        self, replica: RunningReplica, request_metadata: Any = None
    ) -> None:
        """Give the replica to the request for which the replica was chosen.

        Serve would search by request id and always find the first of several requests with that id;
        the others would wait forever.
        """
        request = self._request_of_task.get(asyncio.current_task())
        if request is None or request.metadata is not request_metadata:
            super()._fulfill_next_pending_request(replica, request_metadata)
        elif not request.future.done():
            self._record_queue_wait_time(request)
            request.future.set_result(replica)
            self._remove_pending_request_from_indices(request)

    def _is_being_sent(self, request: PendingRequest) -> bool:
        """Return whether the request will be sent; otherwise its end would never be reported."""
        return request.future in self._routing_task_by_pending_request_future

    # Reservations

    async def _begin_lease(
        self, tokens: Sequence[int], allowed: list[int], request: PendingRequest
    ) -> AsyncLease | None:
        """Reserve a rank; None means no selector answers or none has any of these replicas."""
        if time.monotonic() < self._unavailable_until:
            return None
        fields: LeaseFields = {"token_ids": tokens, "allowed_worker_ids": allowed}
        expected = output_tokens(request)
        if expected is not None:
            fields["expected_output_tokens"] = expected
        try:
            client = await self._selectors.current_client()
            return await client.begin(**fields)
        except Refused as refused:
            log.debug("selection refused: %s", refused)
        except (SelectorError, LookupError) as error:
            self._unavailable_until = time.monotonic() + UNAVAILABLE_PAUSE_S
            log.warning("selectors unavailable, Serve chooses: %s", error)
        except Exception:  # Serve would never answer a request after an exception of its router
            self._unavailable_until = time.monotonic() + UNAVAILABLE_PAUSE_S
            log.exception("selection failed, Serve chooses")
        return None

    def _keep_lease(self, booking: RoutedRequest) -> None:
        """Keep a lease until Serve reports the end of the request, or its cancellation."""
        key, request = id(booking.request), booking.request
        self._routed[key] = booking
        self._keys.setdefault(completion_key(booking), []).append(key)
        if self._reservation_kwarg is not None:
            request.kwargs[self._reservation_kwarg] = {
                "reservation_id": booking.lease.reservation_id,
                "selector": booking.lease.selector,
                "block_size": booking.lease.block_size,
            }
        request.future.add_done_callback(lambda future: self._end_if_cancelled(key, future))
        # In order of insertion, so the first entry is the oldest.
        while next(iter(self._routed.values())).release_at < time.monotonic():
            self._end_lease(next(iter(self._routed)), None)

    def _end_if_cancelled(self, key: int, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self._end_lease(key, None)

    def _end_former_lease(self, request: PendingRequest) -> frozenset[ReplicaID]:
        """End the former lease of a request that is routed again; return all replicas chosen so
        far.
        """
        if self._reservation_kwarg is not None:
            # Serve may send the request without a new choice, and then without a reservation.
            request.kwargs.pop(self._reservation_kwarg, None)
        former = self._routed.get(id(request))
        if former is None:
            return frozenset()
        self._end_lease(id(request), None)
        return former.earlier_replicas

    def _end_lease(self, key: int, outcome: Outcome) -> None:
        booking = self._routed.pop(key, None)
        if booking is None:
            return
        booking.lease.end(outcome)
        name = completion_key(booking)
        self._keys[name].remove(key)
        if not self._keys[name]:
            del self._keys[name]

    def _drop_replicas(self, gone: Collection[ReplicaID], outcome: Outcome) -> None:
        """End all leases of replicas that are gone and remove the replicas from the selectors."""
        if not gone:
            return
        for key in [key for key, each in self._routed.items() if each.replica_id in gone]:
            self._end_lease(key, outcome)
        worker_ids = [worker_id_of(replica_id.unique_id) for replica_id in gone]
        removal = asyncio.to_thread(remove_everywhere, self._urls, worker_ids, self._credentials)
        task = self._event_loop.create_task(removal)
        self._removal_tasks.add(task)
        # The event loop keeps only weak references to tasks.
        task.add_done_callback(self._removal_tasks.discard)


def completion_key(booking: RoutedRequest) -> tuple[ReplicaID, str]:
    """Return the key that Serve uses to report the end of the request."""
    return booking.replica_id, booking.request.metadata.internal_request_id


def two_random_replicas(replicas: Sequence[RunningReplica]) -> list[list[RunningReplica]]:
    """Return two random replicas: Serve's own choice, of which the shorter queue wins."""
    # Two choices: much better balance than one, at the cost of one more queue length.
    return [random.sample(replicas, min(2, len(replicas)))] if replicas else []


def prompt_tokens(request: PendingRequest) -> Sequence[int] | None:
    """Return the token ids of a request; None means that the request has none."""
    found = find_argument(request, TOKENS)
    return found if found is not None and len(found) > 0 else None


def output_tokens(request: PendingRequest) -> int | None:
    """Return the largest number of output tokens of a request; None means unknown."""
    found = find_argument(request, OUTPUT_TOKENS)
    return found if isinstance(found, int) and found > 0 else None


def find_argument(request: PendingRequest, names: Sequence[str]) -> Any:
    """Return the first of these names that is an argument, or a field of the first argument."""
    first = request.args[0] if request.args else None
    for name in names:
        if request.kwargs.get(name) is not None:
            return request.kwargs[name]
        found = first.get(name) if isinstance(first, Mapping) else getattr(first, name, None)
        if found is not None:
            return found
    return None
