"""Routes of the service as coroutine methods: `await selector.loads()`."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from select_service.client import route_table
from select_service.client.client_core import ClientCore
from select_service.client.route_table import ClientRoute

P = ParamSpec("P")
A = TypeVar("A")


class AsyncCall(Generic[P, A]):
    """Descriptor that turns a route into a method of `AsyncRoutes`."""

    def __init__(self, route: ClientRoute[P, A]) -> None:
        self.route = route

    @overload
    def __get__(self, selector: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, selector: "AsyncRoutes", owner: Any) -> Callable[P, Awaitable[A]]: ...
    def __get__(self, selector: "AsyncRoutes | None", owner: Any) -> Any:
        if selector is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> Awaitable[A]:
            return selector.core.call(self.route, *args, **kwargs)

        return call


class AsyncRoutes:
    """All routes that create no reservation; docs/reference/api.md describes them.

    All raise SelectorError.
    """

    core: ClientCore

    select = AsyncCall(route_table.SELECT)
    explain = AsyncCall(route_table.EXPLAIN)
    decisions = AsyncCall(route_table.DECISIONS)
    decision = AsyncCall(route_table.DECISION)
    reservations = AsyncCall(route_table.RESERVATIONS)
    reservation = AsyncCall(route_table.RESERVATION)
    prefill_complete = AsyncCall(route_table.PREFILL_COMPLETE)
    output_block = AsyncCall(route_table.OUTPUT_BLOCK)
    renew = AsyncCall(route_table.RENEW)
    free = AsyncCall(route_table.FREE)
    migrated = AsyncCall(route_table.MIGRATED)
    migrations = AsyncCall(route_table.MIGRATIONS)
    workers = AsyncCall(route_table.WORKERS)
    worker = AsyncCall(route_table.WORKER)
    register = AsyncCall(route_table.REGISTER)
    patch = AsyncCall(route_table.PATCH)
    delete_worker = AsyncCall(route_table.DELETE_WORKER)
    state = AsyncCall(route_table.STATE)
    discovery = AsyncCall(route_table.DISCOVERY)
    fleet_health = AsyncCall(route_table.FLEET_HEALTH)
    outcome = AsyncCall(route_table.OUTCOME)
    drain = AsyncCall(route_table.DRAIN)
    undrain = AsyncCall(route_table.UNDRAIN)
    check = AsyncCall(route_table.CHECK)
    learn = AsyncCall(route_table.LEARN)
    set_busy_threshold = AsyncCall(route_table.SET_BUSY_THRESHOLD)
    busy_thresholds = AsyncCall(route_table.BUSY_THRESHOLDS)
    shed = AsyncCall(route_table.SHED)
    admission = AsyncCall(route_table.ADMISSION)
    policy = AsyncCall(route_table.POLICY)
    set_policy = AsyncCall(route_table.SET_POLICY)
    remove_policy = AsyncCall(route_table.REMOVE_POLICY)
    shadow = AsyncCall(route_table.SHADOW)
    begin_experiment = AsyncCall(route_table.BEGIN_EXPERIMENT)
    experiments = AsyncCall(route_table.EXPERIMENTS)
    experiment = AsyncCall(route_table.EXPERIMENT)
    end_experiment = AsyncCall(route_table.END_EXPERIMENT)
    register_peer = AsyncCall(route_table.REGISTER_PEER)
    deregister_peer = AsyncCall(route_table.DEREGISTER_PEER)
    peers = AsyncCall(route_table.PEERS)
    replica_status = AsyncCall(route_table.REPLICA_STATUS)
    loads = AsyncCall(route_table.LOADS)
    potential_loads = AsyncCall(route_table.POTENTIAL_LOADS)
    overlap_scores = AsyncCall(route_table.OVERLAP_SCORES)
    observation = AsyncCall(route_table.OBSERVATION)
    doctor = AsyncCall(route_table.DOCTOR)
    config = AsyncCall(route_table.CONFIG)
    set_log_level = AsyncCall(route_table.SET_LOG_LEVEL)
    health = AsyncCall(route_table.HEALTH)
    ready = AsyncCall(route_table.READY)
    metrics = AsyncCall(route_table.METRICS)
    openapi = AsyncCall(route_table.OPENAPI)
    docs = AsyncCall(route_table.DOCS)
    docs_file = AsyncCall(route_table.DOCS_FILE)
