"""What the event loop tells a loop: partitions, texts of ranks, heads; and what it counted."""

from collections.abc import Sequence

import numpy as np

from indexer.index.memory import SLOTS_MAX
from select_service.bodies.common import DEFAULT_NAME
from select_service.core.arrays import name_array
from select_service.core.identity import PartitionKey
from select_service.core.selector import Selector
from select_service.fast.counts import Counts
from select_service.fast.known_partitions import KnownPartitions
from select_service.fast.serve_layout import AT_ROW, GATE, MASK, NAMES_HASH, STALE, UNKNOWN
from select_service.fast.serve_memory import ServeMemory
from select_service.http.head import Headers
from select_service.loops.loop import Question
from select_service.metrics.service_metrics import Metrics

TOLD_AT_ONCE = 64
"""Texts that are made when one is missing, a hundredth of a millisecond each."""


class Publishing:
    """Of one loop.  Everything is for who holds the mutex of the loop."""

    def __init__(self, selector: Selector, metrics: Metrics, reader: int) -> None:
        """reader: the number of the loop, from 1 on"""
        self._memory = ServeMemory()
        self.state = self._memory.header
        self._gate = selector.gate
        self._mask = np.zeros(SLOTS_MAX, np.bool_)  # memory is taken by those that are there
        name_array(self.state, GATE, self._gate.admits)
        name_array(self.state, MASK, self._mask)
        self._partitions = KnownPartitions(selector.fleet, selector.held, self.state, reader)
        self._counts = Counts(self.state, selector.gate.tally, metrics)

    def ask_hosts(self, hosts: Sequence[bytes]) -> None:
        """Requests for other hosts are handed over."""
        self._memory.ask_hosts(hosts)

    def say(self, headers: Headers) -> bool:
        """Every answer begins with these from now on.  Does no question hold any more?"""
        self._memory.say(headers)
        return self._partitions.look()

    def mend(self, question: Question) -> None:
        """Nothing happens when it cannot be mended: then the loop asks no more."""
        if question.kind == STALE:
            self._partitions.look()
        elif question.kind == UNKNOWN:
            model, tenant = (name or DEFAULT_NAME for name in question.names)
            self.state[NAMES_HASH] = question.names_hash
            if self._partitions.learn(PartitionKey(model, tenant)):
                self._gate.show(self._partitions.at(self.state[AT_ROW]).partition)
        else:
            self._tell(question)

    def _tell(self, question: Question) -> None:
        """The text of the slot, and of some behind it: they may be asked for next."""
        partition, answers, _ = self._partitions.at(question.row)
        for slot in range(question.slot, question.slot + TOLD_AT_ONCE):
            if partition.table.is_taken(slot):
                answers.can_tell(slot)

    def pass_on(self) -> None:
        """Add what was counted to the counters of the ordinary path."""
        self._counts.pass_on()
