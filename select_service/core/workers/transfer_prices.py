"""Price of moving KV blocks between two workers, in tokens of prefill, from their registrations."""

from math import inf
from typing import Literal, NamedTuple

from select_service.core.workers.worker_catalog import RegisteredWorker

LINK_EFFICIENCY = 0.8
"""Share of a link's nominal speed that a transfer of KV blocks reaches."""
UNKNOWN_PRICE = 0.5
"""Price of moving a token over a link of unknown speed, in tokens of prefill."""
HOST_PRICE = 0.02
"""Price of moving a token within a host."""
TransferLevel = Literal["host", "domain", "network"]


class DomainRule(NamedTuple):
    """Rule about the domain of a pair: of a worker, or of a request instead of the workers' own.

    domain: kind of domain
    """

    domain: str
    is_required: bool
    preference: float


class LinkPosition(NamedTuple):
    """Position of a worker for transfers, from its registration.

    host: name of the host; None means unknown
    bytes_per_token: bytes of keys and values of a token
    link_gbps: speed of the network link of the worker's host
    domains: names of the worker's topology domains, by kind
    domain: kind of domain within which the worker's transfers are fast
    is_required: whether transfers have to stay in the domain
    preference: part of the price that a transfer within the domain saves, 0 to 1
    """

    host: str | None = None
    bytes_per_token: float | None = None
    link_gbps: float | None = None
    domains: tuple[tuple[str, str], ...] = ()
    domain: str | None = None
    is_required: bool = False
    preference: float = 0.0

    @property
    def rule(self) -> DomainRule | None:
        """Rule that the worker declares about its transfers; None means no rule."""
        if self.domain is None:
            return None
        return DomainRule(self.domain, self.is_required, self.preference)


def link_position_of(worker: RegisteredWorker) -> LinkPosition:
    """Return the position of a worker for transfers, from its registration."""
    given = worker.registration
    transfer, domains = given.kv_transfer, given.topology_domains
    host = None if transfer is None else transfer.host
    named = dict(domains)
    if transfer is not None and transfer.rack is not None:
        named["rack"] = transfer.rack
    return LinkPosition(
        host=host or domains.get("host"),
        bytes_per_token=None if transfer is None else transfer.bytes_per_token,
        link_gbps=None if transfer is None else transfer.link_gbps,
        domains=tuple(sorted(named.items())),
        domain=given.kv_transfer_domain,
        is_required=given.kv_transfer_enforcement == "required",
        preference=given.kv_transfer_preferred_weight or 0.0,
    )


def price_over_network(position: LinkPosition, prefill_tokens_per_s: float | None) -> float | None:
    """Return the tokens of prefill computed while one token crosses the link; None means unknown.

    prefill_tokens_per_s: usual speed of a prefill rank
    """
    token_s = transfer_token_s(position)
    return token_s * prefill_tokens_per_s if token_s and prefill_tokens_per_s else None


def transfer_token_s(position: LinkPosition) -> float | None:
    """Return the seconds that one token takes on the network link; None means unknown."""
    if not (position.bytes_per_token and position.link_gbps):
        return None
    return position.bytes_per_token / (position.link_gbps * 1e9 / 8 * LINK_EFFICIENCY)


def price_between(
    prefill: LinkPosition, decode: LinkPosition, speed: float | None, rule: DomainRule | None = None
) -> float:
    """Return the price of moving one token from a prefill to a decode worker.

    The slower of both links counts, within a host only if it is the cheaper way.  Infinite where
    a domain is required and not shared.

    speed: usual speed of a prefill rank, tokens/s; None means unknown
    rule: rule of the request; None means the rules of both workers
    """
    saved = 0.0
    for kind, is_required, preference in _domain_rules(prefill, decode, rule):
        ours, theirs = dict(prefill.domains).get(kind), dict(decode.domains).get(kind)
        if ours is not None and ours == theirs:
            saved = max(saved, preference)
        elif is_required:
            return inf
    # A move takes the links of both hosts; if one is unknown, that link may still be the slower.
    prices = [price_over_network(position, speed) for position in (prefill, decode)]
    known = [price for price in prices if price is not None]
    price = max(known) if len(known) == 2 else max([UNKNOWN_PRICE, *known])
    price *= 1.0 - min(max(saved, 0.0), 1.0)
    if prefill.host is not None and prefill.host == decode.host:
        price = min(price, HOST_PRICE)
    return price


def level_between(prefill: LinkPosition, decode: LinkPosition) -> TransferLevel:
    """Return the smallest place that the workers of a transfer share."""
    if prefill.host is not None and prefill.host == decode.host:
        return "host"
    shared = dict(set(prefill.domains) & set(decode.domains))
    return "domain" if {prefill.domain, decode.domain} & shared.keys() else "network"


def _domain_rules(
    prefill: LinkPosition, decode: LinkPosition, rule: DomainRule | None
) -> list[DomainRule]:
    if rule is not None:
        return [rule]
    return [own for own in (prefill.rule, decode.rule) if own is not None]
