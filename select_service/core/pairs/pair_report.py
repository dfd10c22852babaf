"""Pairs in numbers, for metrics, the page and the doctor."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from select_service.core.doctor.facts import PairFacts
from select_service.core.identity import PartitionKey
from select_service.core.pairs.pair_book import TransferCounts
from select_service.core.pairs.pair_decisions import PairDecisions
from select_service.core.workers.transfer_prices import (
    TransferLevel,
    link_position_of,
    price_over_network,
)
from select_service.core.workers.worker_catalog import RegisteredWorker

HOSTS_SHOWN_MAX = 64
"""Hosts shown one by one, by most tokens; the others are summed."""
OTHER_HOSTS = "other"


class PairReport(NamedTuple):
    """Pairs of a process.

    decisions: number of decisions by path
    prompts: prompt tokens of these, cached and to be computed
    live: live legs by leg, including the peers'
    transfers: transfers that count now
    links: tokens that have to leave and to enter hosts, by host and direction
    """

    decisions: Mapping[str, int]
    prompts: Mapping[str, int]
    live: Mapping[str, int]
    transfers: int
    links: Mapping[tuple[str, str], float]
    lost_legs: int
    counts: TransferCounts

    @property
    def moved(self) -> Mapping[TransferLevel, int]:
        """Tokens moved, by level."""
        return {level: self.counts.moved[level] for level in ("host", "domain", "network")}


def make_pair_report(pairs: PairDecisions) -> PairReport:
    """Return the present numbers, as a copy.  O(partitions with pairs + hosts with transfers)"""
    book, counts = pairs.book, pairs.book.counts
    remote, local, prompt_tokens, cached_tokens = pairs.decided.tolist()
    links: Counter[tuple[str, str]] = Counter()
    for _, state in pairs.links.iterate_links():
        for direction, waiting in zip(
            ("leaving", "entering"), state.placer.waiting_by_host(), strict=True
        ):
            for host, tokens in waiting.items():
                links[host, direction] += round(tokens)
    copied = TransferCounts(**{**vars(counts), "moved": counts.moved.copy()})
    return PairReport(
        {"remote": remote, "local": local},
        {"cached": cached_tokens, "computed": prompt_tokens - cached_tokens},
        {"prefill": len(book.legs), "decode": len(book)},
        book.n_transfers,
        _bound_hosts(links),
        len(book.lost_legs),
        copied,
    )


def _bound_hosts(links: Counter[tuple[str, str]]) -> dict[tuple[str, str], float]:
    hosts = sorted({host for host, _ in links})
    if len(hosts) > HOSTS_SHOWN_MAX:
        most = sorted(hosts, key=lambda host: -links[host, "leaving"] - links[host, "entering"])
        hosts = most[:HOSTS_SHOWN_MAX]
    shown, found = set(hosts), Counter[tuple[str, str]]()
    for (host, direction), tokens in links.items():
        found[host if host in shown else OTHER_HOSTS, direction] += tokens
    return {each: float(tokens) for each, tokens in found.items()}


def find_pair_facts(pairs: PairDecisions, workers: Iterable[RegisteredWorker]) -> PairFacts:
    """Return the facts.  O(workers)

    workers: schedulable workers
    """
    by_key: dict[PartitionKey, list[RegisteredWorker]] = {}
    for worker in workers:
        by_key.setdefault(worker.key, []).append(worker)
    unknown = 0
    connectors: dict[str, tuple[str, ...]] = {}
    without_decode: list[str] = []
    for key, there in by_key.items():
        name = f"model={key.model_name} tenant={key.tenant_id}"
        roles = {worker.registration.role for worker in there}
        if roles == {"prefill"}:
            without_decode.append(name)
        given = [worker.registration.kv_transfer for worker in there]
        kinds = sorted({each.kind for each in given if each is not None and each.kind})
        if len(kinds) > 1:
            connectors[name] = tuple(kinds)
        unknown += sum(map(_has_unknown_link, there))
    counts = pairs.book.counts
    return PairFacts(
        pairs.n_decided,
        unknown,
        connectors,
        tuple(without_decode),
        counts.first_tokens,
        counts.unreported,
    )


def _has_unknown_link(worker: RegisteredWorker) -> bool:
    speed = worker.registration.prefill_tokens_per_s
    return price_over_network(link_position_of(worker), speed) is None
