"""Limits of the wait: the end of each request's wait, deadlines that cannot be met, full queues."""

from collections.abc import Mapping
from math import inf

from select_service.base.errors import DeadlineExceeded, QueueFull, QueueTimeout, SelectError
from select_service.core.admission.busy_check import BusyCheck
from select_service.core.admission.drain_rate import retry_after_seconds, round_up_seconds
from select_service.core.admission.flow_clock import compute_burst
from select_service.core.admission.outcome_counters import AdmissionCounters
from select_service.core.admission.partition_queue import PartitionQueue
from select_service.core.admission.release_rate import ReleaseRate
from select_service.core.admission.shed_tiers import ShedTiers
from select_service.core.admission.slot_bits import count_slots
from select_service.core.admission.wait_estimate import estimate_wait
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
        """Raise the error of `find_refusal`, and count it."""
        # Only a deadline needs the estimate.
        wait_s = None if ticket.due_at == inf else self.estimate_wait(queue, ticket)
        error = self.find_refusal(queue, ticket, wait_s)
        if error is not None:
            self._count_refusal(ticket, error)
            raise error

    def find_refusal(
        self, queue: PartitionQueue, ticket: WaitingTicket, wait_s: float | None
    ) -> SelectError | None:
        """Return the error of a ticket that must not wait; None means that it may.

        wait_s: estimated wait, seconds; None means unknown
        """
        partition = ticket.placement_request.partition
        if ticket.deadline <= ticket.arrived_at:
            return self._timeout_error(ticket, ticket.arrived_at)
        left_s = ticket.due_at - ticket.arrived_at
        if wait_s is not None and wait_s > left_s:
            return self._deadline_error(
                ticket,
                wait_s - left_s,
                f"the estimated wait for a rank is {wait_s:.3f} s, {left_s:.3f} s are left",
            )
        try:
            queue.check_room(ticket, partition.table.n_workers)
            self._waiting.check_bounds(ticket, queue.queue_of(ticket).flow_of(ticket).usage)
        except QueueFull as error:
            error.retry_after_s = self._retry_after_s(partition)
            return error
        return None

    def estimate_wait(self, queue: PartitionQueue, ticket: WaitingTicket) -> float | None:
        """Return the estimated wait of a new ticket, seconds; None while no rate is known."""
        partition = ticket.placement_request.partition
        rate = self._rates.get(partition.key)
        per_s = None if rate is None else rate.tokens_per_s()
        if per_s is None:
            return None
        legs = lane_bits(partition, ticket.request, ticket.pairs)
        return estimate_wait(queue, ticket, legs, per_s, compute_burst(partition.table))

    def observe_release(self, partitions: Mapping[PartitionKey, Partition], now: float) -> None:
        """Update the release rates, once a second."""
        queues = self._waiting.queues
        keys = [key for key in partitions if key in queues or key in self._rates]
        # Partitions that have left are forgotten, the others keep their rate through idle times.
        self._rates = {key: self._rates.get(key) or ReleaseRate() for key in keys}
        for key, rate in self._rates.items():
            queue = queues.get(key)
            n_ranks = 0 if queue is None else count_slots(queue.waited_bits())
            rate.observe_queue(queue, n_ranks, now)

    def end_wait(self, ticket: WaitingTicket, now: float) -> SelectError:
        """Count a request at the end of the wait, and return its error."""
        error = self._timeout_error(ticket, now)
        self._count_refusal(ticket, error)
        return error

    def _count_refusal(self, ticket: WaitingTicket, error: SelectError) -> None:
        key = ticket.placement_request.partition.key
        if isinstance(error, QueueFull):
            self._tally.count_refusal("queue_full", key)
        elif isinstance(error, DeadlineExceeded):
            self._tally.count_refusal("deadline_exceeded", key)
            self._tally.count_missed_deadline(ticket.policy_class)
        else:
            self._tally.count_refusal("queue_timeout", key)

    def _timeout_error(self, ticket: WaitingTicket, now: float) -> SelectError:
        partition, waited_s = ticket.placement_request.partition, now - ticket.arrived_at
        text = f"no worker had room within {waited_s:.3f} s"
        # The earlier limit names the error, and a deadline counts if both end together.
        if ticket.due_at <= ticket.deadline:
            return self._deadline_error(ticket, self._retry_after_s(partition), text)
        error = QueueTimeout(f"queue_timeout: {text} (policy class {ticket.policy_class})")
        error.retry_after_s = self._retry_after_s(partition)
        return error

    @staticmethod
    def _deadline_error(ticket: WaitingTicket, retry_after_s: float, text: str) -> DeadlineExceeded:
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
