"""Routes of the service as blocking methods: `selector.loads()`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from select_service.client import route_table
from select_service.client.route_table import ClientRoute

P = ParamSpec("P")
A = TypeVar("A")


class BlockingCall(Generic[P, A]):
    """Descriptor that turns a route into a method of `BlockingRoutes`."""

    def __init__(self, route: ClientRoute[P, A]) -> None:
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
    """All routes that create no reservation; docs/reference/api.md describes them.

    All raise SelectorError.
    """

    @abstractmethod
    def call(self, route: ClientRoute[P, A], *args: P.args, **kwargs: P.kwargs) -> A:
        """Call a route that creates no reservation.  Raises SelectorError."""

    select = BlockingCall(route_table.SELECT)
    explain = BlockingCall(route_table.EXPLAIN)
    decisions = BlockingCall(route_table.DECISIONS)
    decision = BlockingCall(route_table.DECISION)
    reservations = BlockingCall(route_table.RESERVATIONS)
    reservation = BlockingCall(route_table.RESERVATION)
    prefill_complete = BlockingCall(route_table.PREFILL_COMPLETE)
    output_block = BlockingCall(route_table.OUTPUT_BLOCK)
    renew = BlockingCall(route_table.RENEW)
    free = BlockingCall(route_table.FREE)
    migrated = BlockingCall(route_table.MIGRATED)
    migrations = BlockingCall(route_table.MIGRATIONS)
    workers = BlockingCall(route_table.WORKERS)
    worker = BlockingCall(route_table.WORKER)
    register = BlockingCall(route_table.REGISTER)
    patch = BlockingCall(route_table.PATCH)
    delete_worker = BlockingCall(route_table.DELETE_WORKER)
    state = BlockingCall(route_table.STATE)
    discovery = BlockingCall(route_table.DISCOVERY)
    fleet_health = BlockingCall(route_table.FLEET_HEALTH)
    outcome = BlockingCall(route_table.OUTCOME)
    drain = BlockingCall(route_table.DRAIN)
    undrain = BlockingCall(route_table.UNDRAIN)
    check = BlockingCall(route_table.CHECK)
    learn = BlockingCall(route_table.LEARN)
    set_busy_threshold = BlockingCall(route_table.SET_BUSY_THRESHOLD)
    busy_thresholds = BlockingCall(route_table.BUSY_THRESHOLDS)
    shed = BlockingCall(route_table.SHED)
    admission = BlockingCall(route_table.ADMISSION)
    policy = BlockingCall(route_table.POLICY)
    set_policy = BlockingCall(route_table.SET_POLICY)
    remove_policy = BlockingCall(route_table.REMOVE_POLICY)
    shadow = BlockingCall(route_table.SHADOW)
    begin_experiment = BlockingCall(route_table.BEGIN_EXPERIMENT)
    experiments = BlockingCall(route_table.EXPERIMENTS)
    experiment = BlockingCall(route_table.EXPERIMENT)
    end_experiment = BlockingCall(route_table.END_EXPERIMENT)
    register_peer = BlockingCall(route_table.REGISTER_PEER)
    deregister_peer = BlockingCall(route_table.DEREGISTER_PEER)
    peers = BlockingCall(route_table.PEERS)
    replica_status = BlockingCall(route_table.REPLICA_STATUS)
    loads = BlockingCall(route_table.LOADS)
    potential_loads = BlockingCall(route_table.POTENTIAL_LOADS)
    overlap_scores = BlockingCall(route_table.OVERLAP_SCORES)
    observation = BlockingCall(route_table.OBSERVATION)
    doctor = BlockingCall(route_table.DOCTOR)
    config = BlockingCall(route_table.CONFIG)
    set_log_level = BlockingCall(route_table.SET_LOG_LEVEL)
    health = BlockingCall(route_table.HEALTH)
    ready = BlockingCall(route_table.READY)
    metrics = BlockingCall(route_table.METRICS)
    openapi = BlockingCall(route_table.OPENAPI)
    docs = BlockingCall(route_table.DOCS)
    docs_file = BlockingCall(route_table.DOCS_FILE)
