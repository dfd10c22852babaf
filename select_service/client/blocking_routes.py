"""The routes as methods that wait for their answers: `selector.loads()`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from select_service.client import routes
from select_service.client.routes import Route

P = ParamSpec("P")
A = TypeVar("A")


class BlockingCall(Generic[P, A]):
    """A route as a method of `BlockingRoutes`."""

    def __init__(self, route: Route[P, A]) -> None:
        self.route = route

    @overload
    def __get__(self, selector: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, selector: "BlockingRoutes", owner: Any) -> Callable[P, A]: ...
    def __get__(self, selector: "BlockingRoutes | None", owner: Any) -> Any:
        if selector is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> A:
            return selector.call(self.route, *args, **kwargs)

        return call


class BlockingRoutes(ABC):
    """docs/api.md says what each of them does.  All raise SelectorError."""

    @abstractmethod
    def call(self, route: Route[P, A], *args: P.args, **kwargs: P.kwargs) -> A:
        """Any route that books nothing.  Raises SelectorError."""

    select = BlockingCall(routes.SELECT)
    explain = BlockingCall(routes.EXPLAIN)
    decisions = BlockingCall(routes.DECISIONS)
    decision = BlockingCall(routes.DECISION)
    reservations = BlockingCall(routes.RESERVATIONS)
    reservation = BlockingCall(routes.RESERVATION)
    prefill_complete = BlockingCall(routes.PREFILL_COMPLETE)
    output_block = BlockingCall(routes.OUTPUT_BLOCK)
    renew = BlockingCall(routes.RENEW)
    free = BlockingCall(routes.FREE)
    migrated = BlockingCall(routes.MIGRATED)
    migrations = BlockingCall(routes.MIGRATIONS)
    workers = BlockingCall(routes.WORKERS)
    worker = BlockingCall(routes.WORKER)
    register = BlockingCall(routes.REGISTER)
    patch = BlockingCall(routes.PATCH)
    delete_worker = BlockingCall(routes.DELETE_WORKER)
    state = BlockingCall(routes.STATE)
    discovery = BlockingCall(routes.DISCOVERY)
    fleet_health = BlockingCall(routes.FLEET_HEALTH)
    outcome = BlockingCall(routes.OUTCOME)
    drain = BlockingCall(routes.DRAIN)
    undrain = BlockingCall(routes.UNDRAIN)
    check = BlockingCall(routes.CHECK)
    learn = BlockingCall(routes.LEARN)
    set_busy_threshold = BlockingCall(routes.SET_BUSY_THRESHOLD)
    busy_thresholds = BlockingCall(routes.BUSY_THRESHOLDS)
    shed = BlockingCall(routes.SHED)
    admission = BlockingCall(routes.ADMISSION)
    policy = BlockingCall(routes.POLICY)
    set_policy = BlockingCall(routes.SET_POLICY)
    remove_policy = BlockingCall(routes.REMOVE_POLICY)
    shadow = BlockingCall(routes.SHADOW)
    begin_experiment = BlockingCall(routes.BEGIN_EXPERIMENT)
    experiments = BlockingCall(routes.EXPERIMENTS)
    experiment = BlockingCall(routes.EXPERIMENT)
    end_experiment = BlockingCall(routes.END_EXPERIMENT)
    register_peer = BlockingCall(routes.REGISTER_PEER)
    deregister_peer = BlockingCall(routes.DEREGISTER_PEER)
    peers = BlockingCall(routes.PEERS)
    replica_status = BlockingCall(routes.REPLICA_STATUS)
    loads = BlockingCall(routes.LOADS)
    potential_loads = BlockingCall(routes.POTENTIAL_LOADS)
    overlap_scores = BlockingCall(routes.OVERLAP_SCORES)
    observation = BlockingCall(routes.OBSERVATION)
    doctor = BlockingCall(routes.DOCTOR)
    config = BlockingCall(routes.CONFIG)
    set_log_level = BlockingCall(routes.SET_LOG_LEVEL)
    health = BlockingCall(routes.HEALTH)
    ready = BlockingCall(routes.READY)
    metrics = BlockingCall(routes.METRICS)
    openapi = BlockingCall(routes.OPENAPI)
    docs = BlockingCall(routes.DOCS)
    docs_file = BlockingCall(routes.DOCS_FILE)
