"""Fleet with prefill and decode apart: roles and hosts of ranks, and the links between hosts."""

from typing import NamedTuple

from select_service.core.workers.transfer_prices import HOST_PRICE, LINK_EFFICIENCY
from select_service.schemas.kv_transfer import KvTransferFields
from select_service.schemas.observation import Role
from select_service.sim.engine.core_router import RankRegistration
from select_service.sim.engine.gpu_hardware import KV_BYTES, Fleet

RANKS_PER_HOST, LINK_GBPS = 4, 100.0


class PairFleet(NamedTuple):
    """Ranks with roles.

    roles: role of each rank;  hosts: number of the host of each rank
    link_gbps: speed of the network link of a host, in each direction
    """

    fleet: Fleet
    roles: tuple[Role, ...]
    hosts: tuple[int, ...]
    link_gbps: float

    def ranks_of(self, role: Role) -> list[int]:
        """Return the ranks of a role."""
        return [rank for rank, each in enumerate(self.roles) if each == role]

    def count_links(self) -> int:
        """Return the links that can be in use at once: each transfer needs one of either side."""
        hosts = [
            {self.hosts[rank] for rank in self.ranks_of(role)} for role in ("prefill", "decode")
        ]
        return min(map(len, hosts)) if len(hosts[0] | hosts[1]) > 1 else 0

    def declare_ranks(self) -> tuple[RankRegistration, ...]:
        """Return the registrations of the ranks."""
        return tuple(
            RankRegistration(
                role,
                KvTransferFields(
                    bytes_per_token=KV_BYTES, link_gbps=self.link_gbps, host=f"host-{host}"
                ),
            )
            for role, host in zip(self.roles, self.hosts, strict=True)
        )


def split_fleet(
    fleet: Fleet,
    prefills: int,
    link_gbps: float = LINK_GBPS,
    ranks_per_host: int = RANKS_PER_HOST,
) -> PairFleet:
    """Return a fleet of which `prefills` ranks, evenly over the hosts, are for prefill."""
    n = len(fleet)
    roles: list[Role] = [
        "prefill" if (rank + 1) * prefills // n > rank * prefills // n else "decode"
        for rank in range(n)
    ]
    hosts = tuple(rank // ranks_per_host for rank in range(n))
    return PairFleet(fleet, tuple(roles), hosts, link_gbps)


class TransferLinks:
    """Network links of the hosts: each direction moves one transfer after the other.

    A transfer begins when both links are free, and takes both until its end.  Within a host blocks
    move at the speed behind HOST_PRICE, without a queue.
    """

    def __init__(self, pairs: PairFleet) -> None:
        self._hosts = pairs.hosts
        self._token_s = KV_BYTES / (pairs.link_gbps * 1e9 / 8 * LINK_EFFICIENCY)
        self._within_s = HOST_PRICE / pairs.fleet[0].prefill_tokens_per_s
        n_hosts = max(pairs.hosts) + 1
        self._leaving_free_at = [0.0] * n_hosts
        self._entering_free_at = [0.0] * n_hosts
        self.busy_s = 0.0

    def start_transfer(self, prefill: int, decode: int, tokens: int, now: float) -> float:
        """Start a transfer between two ranks as soon as possible; return the time of its end."""
        leaving, entering = self._hosts[prefill], self._hosts[decode]
        if leaving == entering:
            return now + tokens * self._within_s
        seconds = tokens * self._token_s
        begin = max(now, self._leaving_free_at[leaving], self._entering_free_at[entering])
        self._leaving_free_at[leaving] = self._entering_free_at[entering] = begin + seconds
        self.busy_s += seconds
        return begin + seconds
