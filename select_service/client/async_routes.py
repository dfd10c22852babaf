"""The routes as methods, for asyncio: `await selector.loads()`."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from select_service.client import routes
from select_service.client.link import Link
from select_service.client.routes import Route

P = ParamSpec("P")
A = TypeVar("A")


class AsyncCall(Generic[P, A]):
    """A route as a method of `AsyncRoutes`."""

    def __init__(self, route: Route[P, A]) -> None:
        self.route = route

    @overload
    def __get__(self, selector: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, selector: "AsyncRoutes", owner: Any) -> Callable[P, Awaitable[A]]: ...
    def __get__(self, selector: "AsyncRoutes | None", owner: Any) -> Any:
        if selector is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> Awaitable[A]:
            return selector.link.call(self.route, *args, **kwargs)

        return call


class AsyncRoutes:
    """docs/api.md says what each of them does.  All raise SelectorError."""

    link: Link

    select = AsyncCall(routes.SELECT)
    explain = AsyncCall(routes.EXPLAIN)
    decisions = AsyncCall(routes.DECISIONS)
    decision = AsyncCall(routes.DECISION)
    reservations = AsyncCall(routes.RESERVATIONS)
    reservation = AsyncCall(routes.RESERVATION)
    prefill_complete = AsyncCall(routes.PREFILL_COMPLETE)
    output_block = AsyncCall(routes.OUTPUT_BLOCK)
    renew = AsyncCall(routes.RENEW)
    free = AsyncCall(routes.FREE)
    migrated = AsyncCall(routes.MIGRATED)
    migrations = AsyncCall(routes.MIGRATIONS)
    workers = AsyncCall(routes.WORKERS)
    worker = AsyncCall(routes.WORKER)
    register = AsyncCall(routes.REGISTER)
    patch = AsyncCall(routes.PATCH)
    delete_worker = AsyncCall(routes.DELETE_WORKER)
    state = AsyncCall(routes.STATE)
    discovery = AsyncCall(routes.DISCOVERY)
    fleet_health = AsyncCall(routes.FLEET_HEALTH)
    outcome = AsyncCall(routes.OUTCOME)
    drain = AsyncCall(routes.DRAIN)
    undrain = AsyncCall(routes.UNDRAIN)
    check = AsyncCall(routes.CHECK)
    learn = AsyncCall(routes.LEARN)
    set_busy_threshold = AsyncCall(routes.SET_BUSY_THRESHOLD)
    busy_thresholds = AsyncCall(routes.BUSY_THRESHOLDS)
    shed = AsyncCall(routes.SHED)
    admission = AsyncCall(routes.ADMISSION)
    policy = AsyncCall(routes.POLICY)
    set_policy = AsyncCall(routes.SET_POLICY)
    remove_policy = AsyncCall(routes.REMOVE_POLICY)
    shadow = AsyncCall(routes.SHADOW)
    begin_experiment = AsyncCall(routes.BEGIN_EXPERIMENT)
    experiments = AsyncCall(routes.EXPERIMENTS)
    experiment = AsyncCall(routes.EXPERIMENT)
    end_experiment = AsyncCall(routes.END_EXPERIMENT)
    register_peer = AsyncCall(routes.REGISTER_PEER)
    deregister_peer = AsyncCall(routes.DEREGISTER_PEER)
    peers = AsyncCall(routes.PEERS)
    replica_status = AsyncCall(routes.REPLICA_STATUS)
    loads = AsyncCall(routes.LOADS)
    potential_loads = AsyncCall(routes.POTENTIAL_LOADS)
    overlap_scores = AsyncCall(routes.OVERLAP_SCORES)
    observation = AsyncCall(routes.OBSERVATION)
    doctor = AsyncCall(routes.DOCTOR)
    config = AsyncCall(routes.CONFIG)
    set_log_level = AsyncCall(routes.SET_LOG_LEVEL)
    health = AsyncCall(routes.HEALTH)
    ready = AsyncCall(routes.READY)
    metrics = AsyncCall(routes.METRICS)
    openapi = AsyncCall(routes.OPENAPI)
    docs = AsyncCall(routes.DOCS)
    docs_file = AsyncCall(routes.DOCS_FILE)
