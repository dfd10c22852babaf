"""Limits of the wait: the end of each request's wait, deadlines that cannot be met, full queues."""

from collections.abc import Mapping
from functools import reduce
from math import inf
from operator import or_

from select_service.base.errors import DeadlineExceeded, QueueFull, QueueTimeout, SelectError
from select_service.core.admission.busy_check import BusyCheck
from select_service.core.admission.drain_rate import retry_after_seconds, round_up_seconds
from select_service.core.admission.outcome_counters import AdmissionCounters
from select_service.core.admission.partition_queue import PartitionQueue
from select_service.core.admission.release_rate import ReleaseRate, estimate_tokens_before
from select_service.core.admission.shed_tiers import ShedTiers
from select_service.core.admission.waiting_list import WaitingList, lane_bits
from select_service.core.admission.waiting_ticket import WaitingTicket
from select_service.core.identity import PartitionKey
from select_service.core.registry.fleet.partition import Partition
from select_service.schemas.selection import SelectRequest


class WaitLimits:
    """Refusals of requests that cannot wait, or waited too long, with their counts."""

    def __init__(
        self,
        waiting: WaitingList,
        timeout_s: float,
        busy_check: BusyCheck,
        shedding: ShedTiers,
        tally: AdmissionCounters,
    ) -> None:
        """timeout_s: maximum waiting time, seconds; 0 = for ever"""
        self._waiting = waiting
        self._timeout_s = timeout_s or inf
        self._busy_check = busy_check
        self._shedding = shedding
        self._tally = tally
        self._rates: dict[PartitionKey, ReleaseRate] = {}

    def end_of_wait(self, request: SelectRequest, due_at: float, now: float) -> float:
        """Return the earliest of the request's own limits and the common one."""
        common = self._timeout_s * self._shedding.rule_of(request.model_name).latency_share
        own = inf if request.timeout_ms is None else request.timeout_ms / 1000.0
        return min(now + min(common, own), due_at)

    def check_entry(self, queue: PartitionQueue, ticket: WaitingTicket) -> None:
        """Raise QueueTimeout, DeadlineExceeded or QueueFull, without adding the ticket."""
        partition = ticket.placement_request.partition
        if ticket.deadline <= ticket.arrived_at:
            raise self.timeout_error(ticket, ticket.arrived_at)
        self._check_due(queue, ticket)
        try:
            queue.queue_of(ticket).check_room(ticket, partition.table.n_workers)
            self._waiting.check_bounds(ticket, queue.queue_of(ticket).flow_of(ticket).usage)
        except QueueFull as error:
            self._tally.count_refusal("queue_full", partition.key)
            error.retry_after_s = self._retry_after_s(partition)
            raise

    def _check_due(self, queue: PartitionQueue, ticket: WaitingTicket) -> None:
        """Raise DeadlineExceeded when the estimated wait is too long.

        Nothing is refused while the release rate is unknown.
        """
        if ticket.due_at == inf:
            return
        partition = ticket.placement_request.partition
        rate, left_s = self._rates.get(partition.key), ticket.due_at - ticket.arrived_at
        per_s = None if rate is None else rate.tokens_per_s(_count_ranks(queue, ticket))
        wait_s = 0.0 if per_s is None else estimate_tokens_before(queue, ticket) / per_s
        if wait_s > left_s:
            raise self._deadline_error(
                ticket,
                wait_s - left_s,
                f"the estimated wait for a rank is {wait_s:.3f} s, {left_s:.3f} s are left",
            )

    def observe_release(self, partitions: Mapping[PartitionKey, Partition], now: float) -> None:
        """Update the release rates, once a second."""
        queues = self._waiting.queues
        keys = [key for key in partitions if key in queues or key in self._rates]
        # Partitions that have left are forgotten, the others keep their rate through idle times.
        self._rates = {key: self._rates.get(key) or ReleaseRate() for key in keys}
        for key, rate in self._rates.items():
            queue = queues.get(key)
            n_ranks = 0 if queue is None else queue.waited_bits().bit_count()
            rate.observe_queue(queue, n_ranks, now)

    def timeout_error(self, ticket: WaitingTicket, now: float) -> SelectError:
        """Count a request at the end of its wait, and return its error."""
        partition, waited_s = ticket.placement_request.partition, now - ticket.arrived_at
        text = f"no worker had room within {waited_s:.3f} s"
        # The earlier limit names the error, and a deadline counts if both end together.
        if ticket.due_at <= ticket.deadline:
            return self._deadline_error(ticket, self._retry_after_s(partition), text)
        self._tally.count_refusal("queue_timeout", partition.key)
        error = QueueTimeout(f"queue_timeout: {text} (policy class {ticket.policy_class})")
        error.retry_after_s = self._retry_after_s(partition)
        return error

    def _deadline_error(
        self, ticket: WaitingTicket, retry_after_s: float, text: str
    ) -> DeadlineExceeded:
        self._tally.count_refusal("deadline_exceeded", ticket.placement_request.partition.key)
        self._tally.count_missed_deadline(ticket.policy_class)
        error = DeadlineExceeded(
            f"deadline_ms {ticket.request.deadline_ms} cannot be met: {text} (policy class "
            f"{ticket.policy_class}); allow more time or send the request elsewhere"
        )
        error.retry_after_s = round_up_seconds(retry_after_s)
        return error

    def _retry_after_s(self, partition: Partition) -> int:
        """Return the seconds until the current queue has drained."""
        work = max(1, self._waiting.backlog_of(partition.key).isl_tokens)
        return retry_after_seconds(work, self._busy_check.drain_rate(partition).tokens_per_s)


def _count_ranks(queue: PartitionQueue, ticket: WaitingTicket) -> int:
    """Return the number of ranks that serve a new request and those before."""
    partition = ticket.placement_request.partition
    if not ticket.lane.is_constrained:
        return int(partition.table.open_slots.sum())
    own = lane_bits(partition, ticket.request, ticket.pairs)
    return reduce(or_, own, queue.waited_bits()).bit_count()
