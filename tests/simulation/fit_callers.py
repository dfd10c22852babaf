"""Gateways: programs that request ranks, call engines, and follow the moves of their requests."""

from dataclasses import dataclass

from select_service.base.errors import NotFound, SelectError
from select_service.core.admission.partition_queue import WaitingTicket
from select_service.core.health.migration.move_cost import MoveMethod
from select_service.core.health.migration.move_log import RETENTION_S
from select_service.core.identity import Rank
from tests.builders import a_reservation, a_select_and_reserve

ATTEMPTS_MAX = 4
BROKEN = {"connect", "hang", "500", "truncated"}
"""Faults that a caller notices; a caller does not notice wrong answers."""
PATIENCE_S = 25.0
"""Longest time in s that a caller waits for a move after its engine has failed."""
WAITED_S = 22.0
"""Longest wait in the queue, in s: the timeout, doubled under degradation, and some slack.
"""
POLLED_MAX = 5
"""Largest number of events in an answer; the small number makes gateways read several pages."""


@dataclass(eq=False)
class Call:
    """Request of a gateway.

    rank: rank of the engine that serves the request
    life: number of the engine's process
    method: method of a move that the call has to follow; None means no such move
    """

    name: str
    node: object
    rank: Rank
    life: int
    method: MoveMethod | None = None
    is_aborted: bool = False


class Gateway:
    """Gateway.

    poll_s: time between two requests for moves, in s
    """

    def __init__(self, world, number, poll_s):
        self.world, self.number, self.poll_s = world, number, poll_s
        self.rng, self.calls, self._n = world.rng, {}, 0
        self._after = {}
        self.heard, self.gaps = {}, set()
        """Received events by process, and the processes that reported missing events."""

    @property
    def is_lazy(self):
        """Return whether the gateway polls too rarely to get all events before they expire."""
        return self.poll_s > RETENTION_S

    # --- moves

    def polling(self):
        while True:
            for number in range(len(self.world.nodes)):
                self.poll(number)
            yield self.poll_s

    def poll(self, number):
        node = self.world.nodes[number]
        page = None
        while page is None or page.events:
            page = node.mover.move_log.events_after(self._after.get(number, 0), POLLED_MAX)
            if page.gap:
                self.gaps.add(node)
            self._after[number] = page.next
            self.heard.setdefault(node, []).extend(page.events)
            for event in page.events:
                self._moved(node, event)

    def _moved(self, node, event):
        call = self.calls.get(event.reservation_id)
        if call is None or call.node is not node:
            return
        if event.target is None:
            call.is_aborted = True
        else:
            call.rank, call.life = event.target, self.world.life(event.target)
            call.method, call.is_aborted = event.method, False

    # --- requests

    def arriving(self, per_s, until_s):
        while self.world.time < until_s:
            yield self.rng.expovariate(per_s)
            self._n += 1
            self.world.run_course(self._request(f"g{self.number}-{self._n}"))

    def _request(self, name):
        call = yield from self._apply_admitted(name)
        if call is None:
            return
        self.calls[name], self.world.running[name] = call, call.node.number
        if (yield from self._served(call)):
            self._end(call, "ok")
        elif self.rng.random() < 0.9:
            self._end(call, "failure")
        else:  # the gateway has crashed, and its reservation is never freed
            del self.calls[name], self.world.running[name]
            self.world.vanished.add(name)

    def _apply_admitted(self, name):
        for attempt in range(ATTEMPTS_MAX):
            node = self.rng.choice(self.world.nodes)
            try:
                if self.rng.random() < 0.1:
                    return self._reserved(node, name)
                answer = node.selector.select_and_reserve(self._body(name), node.now())
                if isinstance(answer, WaitingTicket):
                    answer = yield from _outcome(node, answer)
            except SelectError:
                yield self.rng.uniform(0.5, 1.5) * 2**attempt
                continue
            if answer is None:  # the process has ended
                return None
            rank = Rank(answer.selection.worker_id, answer.selection.dp_rank)
            return Call(name, node, rank, self.world.life(rank))
        return None

    def _reserved(self, node, name):
        """Reserve a rank of the gateway's choice, perhaps an ejected rank, or raise SelectError."""
        rank = self.rng.choice(list(self.world.engines))
        request = a_reservation(name, rank.worker_id, dp_rank=rank.dp_rank, cache_salt=name)
        node.selector.reserve(request, node.now())
        return Call(name, node, rank, self.world.life(rank))

    def _body(self, name):
        rng, start = self.rng, self.rng.randrange(40)
        hashes = list(range(start, start + rng.randrange(1, 6)))
        fields = {}
        if rng.random() < 0.1:
            fields["migratable"] = False
        if rng.random() < 0.1:
            fields["allowed_worker_ids"] = rng.sample(sorted(self.world.catalog), 3)
        return a_select_and_reserve(
            token_ids=None,
            block_hashes=hashes,
            sequence_hashes=hashes,
            isl_tokens=4 * len(hashes),
            reservation_id=name,
            strict_priority=rng.randrange(3),
            priority_tier=rng.choice(["premium", "standard", "best_effort"]),
            **fields,
        )

    def _served(self, call):
        """Return whether the call completed."""
        rng = self.rng
        for step in range(rng.randrange(2, 12)):
            yield rng.expovariate(0.5)
            if rng.random() < 0.004:
                return False
            if call.method is not None:
                yield from self._follow(call)
            if self._is_broken(call) and not (yield from self._waited_for_move(call)):
                return False
            if step == 0:
                self.world.anywhere(call.name, "complete_prefill")
            else:
                self._output(call)
        return True

    def _is_broken(self, call):
        engine = self.world.engines.get(call.rank)
        if engine is None or self.world.life(call.rank) != call.life:
            return True
        return engine.fault in BROKEN

    def _follow(self, call):
        """Continue at the target of the call's move."""
        method, call.method = call.method, None
        yield self.rng.uniform(0.01, 1.0)
        ok = method is MoveMethod.REPREFILL or self.rng.random() < 0.8
        self._confirm(call, ok)
        if not ok and call.method is None:  # the blocks are computed again instead of transferred
            yield self.rng.uniform(0.1, 1.0)
            self._confirm(call, True)

    def _confirm(self, call, ok):
        node = call.node
        if node.is_running:
            try:
                node.mover.confirm_move(call.name, ok, 5.0, node.now())
            except NotFound:
                return

    def _waited_for_move(self, call):
        """Report the failure, and wait for a move to another rank."""
        is_fatal = self.world.life(call.rank) != call.life and self.rng.random() < 0.1
        outcome = "fatal" if is_fatal else "failure"
        self.rng.choice(self.world.nodes).report(call.rank, outcome, call.name)
        for _ in range(int(PATIENCE_S)):
            yield 1.0
            if call.is_aborted and self.rng.random() < 0.5:
                return False
            if call.method is not None:
                yield from self._follow(call)
                if not self._is_broken(call):
                    return True
        return False

    def _output(self, call):
        if call.node.is_running:
            try:
                call.node.selector.add_output_block(call.name, None, call.node.now())
            except NotFound:
                return

    def _end(self, call, outcome):
        del self.calls[call.name]
        nodes = [self.rng.choice(self.world.nodes), call.node, *self.world.nodes]
        for node in nodes:
            if node.is_running and _freed(node, call.name, outcome):
                break
        del self.world.running[call.name]


def _outcome(node, ticket):
    """Return the outcome of a waiting request; None means that the process has ended."""
    begin = node.world.time
    while ticket.outcome is None:
        yield 0.1
        if not node.is_running:
            return None
        assert node.world.time - begin <= WAITED_S, "a request waits for ever"
    if isinstance(ticket.outcome, SelectError):
        raise ticket.outcome
    return ticket.outcome


def _freed(node, name, outcome):
    try:
        node.free(name, outcome)
    except NotFound:
        return False
    return True
