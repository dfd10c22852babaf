"""Tests of the table of sessions against its naive twin."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from select_service.core.identity import Rank
from select_service.core.load.compiled.session_lease_kernels import give_back_lease
from select_service.core.sessions.compiled import session_kernels as kernels
from select_service.core.sessions.session_table import (
    BindingVersion,
    SessionBinding,
    SessionTable,
)
from tests.builders.hypothesis_profiles import explored
from tests.models.session_model import SessionModel

TTL_S = 10.0
WRITER = 2**64 - 3
RESULTS = {
    kernels.STALE: "stale",
    kernels.CREATED: "created",
    kernels.RENEWED: "renewed",
    kernels.MOVED: "moved",
    kernels.TABLE_FULL: "full",
}
NAMES = st.sampled_from(["", "a", "b", "é" * 128, "x" * 255, "12345678", "123456789"])
RANKS = st.tuples(st.sampled_from([1, 2**64 - 1]), st.integers(0, 2))


class TableMatchesModel(RuleBasedStateMachine):
    @initialize(count_max=st.integers(1, 6))
    def start(self, count_max):
        self.table = SessionTable(TTL_S, WRITER, 16)
        self.table.limit_count(count_max)
        self.model = SessionModel(TTL_S, WRITER, count_max)
        self.now = 0.0
        self.leases = []

    def tick(self):
        """Advance the clock, so that the longest idle session is unique."""
        self.now += 1 / 1024

    @rule(name=NAMES, rank=RANKS, context=st.integers(0, 2**40), final=st.booleans())
    def book(self, name, rank, context, final):
        self.tick()
        row = self.table.book_turn(name, Rank(*rank), context, final, self.now)
        session = self.model.book(name, rank, context, final, self.now)
        assert (row == kernels.TABLE_FULL) == (session is None)
        if session is not None:
            self.leases.append((row, session))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def give_back(self, data):
        self.tick()
        row, session = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        give_back_lease(self.table.header, row, self.now)
        self.model.give_back(session, self.now)

    @rule(
        name=NAMES,
        rank=st.tuples(st.sampled_from([1, 2**64 - 1]), st.none() | st.integers(0, 2)),
        above=st.integers(-3, 3),
        writer=st.sampled_from([0, WRITER, WRITER + 1]),
        age=st.sampled_from([0.0, 1.0, 5.0]),
        context=st.integers(0, 100),
    )
    def receive(self, name, rank, above, writer, age, context):
        self.tick()
        # Ages at distances that no two events share.
        idle_since = self.now - age
        version = BindingVersion(max(0, self.model.sequence + above), writer)
        binding = SessionBinding(*rank, version, context)
        result, _ = self.table.apply_binding(name, binding, idle_since, self.now)
        assert RESULTS[result] == self.model.apply(
            name, rank, version, idle_since, context, self.now
        )

    @rule(name=NAMES)
    def end(self, name):
        row = self.table.find_row(name, self.now)
        assert bool(row) == (self.model.find(name, self.now) is not None)
        if row:
            self.table.end_session(row)
            self.model.end(name)

    @rule(seconds=st.sampled_from([0.5, 4.0, TTL_S]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def expire(self):
        self.table.expire_sessions(self.now, 1000)
        self.model.expire(self.now)

    @invariant()
    def agree(self):
        if not hasattr(self, "table"):
            return
        self.table.check_invariants()
        assert len(self.table) == len(self.model.sessions)
        for name, session in self.model.sessions.items():
            found = self.table.find_state(name, self.now)
            assert (found is None) == (self.model.find(name, self.now) is None)
            if found is not None:
                bound = found.binding
                assert (bound.worker_id, bound.dp_rank) == session.rank
                assert bound.version == session.version
                assert bound.context_tokens == session.context
                assert (found.leases, found.turns) == (session.leases, session.turns)
                assert found.idle_since == session.idle_since
                assert found.is_final == session.final
        self.check_sums()
        counts = self.table.counts
        assert (counts.evicted, counts.refused) == (self.model.evicted, self.model.refused)

    def check_sums(self):
        """Compare the sums over lasting sessions with the sums of a new table of equal sessions."""
        other, last = SessionTable(TTL_S, 5, 16), self.now - self.table.lasting_s
        for name, session in self.model.sessions.items():
            if session.leases or session.idle_since > last:
                bound = SessionBinding(*session.rank, BindingVersion(*session.version))
                other.apply_binding(name, bound, self.now, self.now)
        assert self.table.sum_parts(self.now).tolist() == other.sum_parts(self.now).tolist()


TestTableMatchesModel = explored(TableMatchesModel, runs=60)
