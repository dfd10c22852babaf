"""History of a run: operations of clients, faults, and states of the replicas."""

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["book", "repeat", "prefill_complete", "renew", "read", "end"]
Rank = tuple[int, int]


@dataclass
class Operation:
    """Call of a client.  begin, end: seconds;  status: None means no answer

    rank: worker and data-parallel rank of an answered booking or reading
    """

    client: int
    kind: Kind
    replica: int
    name: str
    begin: float
    end: float
    status: int | None
    rank: Rank | None = None

    @property
    def is_done(self) -> bool:
        return self.status in (200, 201)

    @property
    def may_be_done(self) -> bool:
        return self.status is None or self.is_done


@dataclass
class FaultWindow:
    """Time in which a replica was killed or its network was faulty.

    An unset end means until the end of the history.
    """

    kind: Literal["kill", "network"]
    replica: int
    begin: float
    end: float | None = None
    text: str = ""


@dataclass
class HeldRow:
    """Reservation as a replica lists it."""

    name: str
    rank: Rank
    is_in_prefill: bool
    prefill_tokens: int


@dataclass(order=True)
class ShownLoad:
    """Load of a rank as a replica shows it."""

    rank: Rank
    requests: int
    prefill_tokens: int


@dataclass
class ReplicaView:
    """Reservations, loads and worker ids of a replica."""

    rows: list[HeldRow]
    loads: list[ShownLoad]
    workers: list[int]

    @property
    def names(self) -> set[str]:
        return {row.name for row in self.rows}


@dataclass
class SettledState:
    """Views of all replicas, some time after the last fault and the last operation.

    settled_s: seconds from the last fault until the replicas agreed; None means never
    """

    at: float
    settled_s: float | None
    views: list[ReplicaView]


@dataclass
class History:
    """History of a run.

    lease_s: time to live of reservations;  expired: state after the last lease
    """

    workers: list[int]
    lease_s: float
    operations: list[Operation] = field(default_factory=list)
    faults: list[FaultWindow] = field(default_factory=list)
    settled: SettledState | None = None
    expired: SettledState | None = None
