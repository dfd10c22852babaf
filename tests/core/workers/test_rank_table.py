"""Tests of RankTable against its naive twin, and of taint names beyond the bits."""

from collections import Counter

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from indexer.index.prefix_index import PrefixIndex
from select_service.core.identity import Rank
from select_service.core.placement import decision_ring_layout
from select_service.core.workers import rank_table_layout, taint_bits
from select_service.core.workers.rank_table import RankTable
from select_service.core.workers.worker_catalog import RegisteredWorker
from tests.builders import a_worker
from tests.builders.hypothesis_profiles import explored
from tests.core.workers.tables import a_table
from tests.models.rank_table_model import RankTableModel

NAMES = st.sampled_from([f"t{n}" for n in range(5)])
WORKERS = st.sampled_from([0, 3, 7, 2**64 - 1])


class RankTableMatchesModel(RuleBasedStateMachine):
    """Ranks come, change and go; three names of taints have a bit, two have none."""

    def __init__(self):
        super().__init__()
        self.table, self.model, self.index = RankTable(), RankTableModel(), PrefixIndex(64)
        self.table.taint_names = taint_bits.TaintBits(3)

    @rule(
        worker_id=WORKERS,
        dp_ranks=st.sets(st.integers(0, 4), min_size=1),
        names=st.lists(NAMES, max_size=4),
        blocks=st.sampled_from([None, 7]),
        tokens=st.sampled_from([None, 5]),
        speed=st.sampled_from([None, 100.0, 250.5, 7.0]),
    )
    def put(self, worker_id, dp_ranks, names, blocks, tokens, speed):
        """Put a worker with these ranks; other ranks of the worker leave."""
        ranks = [Rank(worker_id, dp_rank) for dp_rank in sorted(dp_ranks)]
        given = a_worker(
            worker_id,
            taints=names,
            total_kv_blocks=blocks,
            max_num_batched_tokens=tokens,
            prefill_tokens_per_s=speed,
        )
        old = dict(self.table.iterate_slots())
        known = {rank: self.table.writer_of(rank) for rank in old}
        writers = {rank: known.get(rank) or self.index.open_slot() for rank in ranks}
        self.table.ensure_slots(self.index.n_slots)
        before, worker = self.table.version, RegisteredWorker(given)
        self.table.prepare_worker(worker)
        self.table.put_worker(worker, writers)
        for rank, writer in writers.items():
            self.model.put(writer.slot, rank, given)
        assert self.table.version != before
        self.drop_ranks(r for r in old if r.worker_id == worker_id and r not in writers)

    @precondition(lambda self: self.model.rows)
    @rule(number=st.integers(0, 100), many=st.booleans())
    def drop(self, number, many):
        slot = sorted(self.model.rows)[number % len(self.model.rows)]
        rank = self.model.rows[slot].rank
        others = [
            r for r, _ in self.table.iterate_slots() if many and r.worker_id == rank.worker_id
        ]
        self.drop_ranks(others or [rank])

    def drop_ranks(self, ranks):
        ranks = list(ranks)
        if not ranks:
            return
        before = self.table.version
        for row in self.table.remove_ranks(ranks[0].worker_id, ranks):
            assert row.rank == self.model.drop(row.writer.slot)
            row.writer.close()
        assert before != self.table.version

    @precondition(lambda self: self.model.rows)
    @rule(number=st.integers(0, 100), usage=st.sampled_from([None, 0.0, 0.5, 1.0]))
    def an_engine_reports_usage(self, number, usage):
        slot = sorted(self.model.rows)[number % len(self.model.rows)]
        assert self.table.set_kv_usage(slot, usage) == self.model.set_kv_usage(slot, usage)

    @precondition(lambda self: self.model.rows)
    @rule(
        number=st.integers(0, 100),
        weight=st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0]),
        state=st.sampled_from(["unhealthy", "draining"]),
    )
    def weigh(self, number, weight, state):
        slot = sorted(self.model.rows)[number % len(self.model.rows)]
        before = self.table.version
        turns = self.table.set_weight(slot, weight, state)
        assert turns == self.model.set_weight(slot, weight, state)
        assert (self.table.version != before) == turns

    @invariant()
    def they_agree(self):
        table = self.table
        assert dict(table.iterate_slots()) == {
            row.rank: slot for slot, row in self.model.rows.items()
        }
        assert table.sorted_ranks() == sorted(dict(table.iterate_slots()))
        assert (len(table), table.n_workers) == (len(self.model.rows), len(self.model.workers()))
        for worker_id in (0, 3, 7):
            assert table.slots_of(worker_id) == self.model.slots_of(worker_id)
            mine = set(table.slots_of(worker_id)) - self.model.mark_closed().keys()
            assert set(np.flatnonzero(table.mask_of(worker_id))) == mine
            assert table.has_only(worker_id) == (self.model.workers() <= {worker_id})
        for slot in range(table.n_slots):
            columns = *table.columns[:5], table.columns.speed
            got = tuple(column[slot] for column in columns)
            np.testing.assert_equal(got, self.model.columns(slot))
        usual = table.header.view(np.float64)[rank_table_layout.MEDIAN_SPEED]
        assert usual == self.model.usual_speed()
        assert (table.columns.worker_number < max(1, table.n_slots)).all()
        table.check_invariants()

    @invariant()
    def closed_ranks_agree(self):
        table, closed = self.table, self.model.mark_closed()
        assert set(np.flatnonzero(table.occupied_slots())) == self.model.rows.keys()
        assert table.n_closed == len(closed)
        assert table.is_closed == (closed.keys() == self.model.rows.keys())
        for some in (range(table.n_slots), range(0, table.n_slots, 2)):
            among = np.isin(np.arange(table.n_slots), some)
            expected = Counter(state for slot, state in closed.items() if slot in some)
            assert table.states_of_closed(among) == expected

    @invariant()
    def masks_of_taints_agree(self):
        for wanted in ({"t0"}, {"t4"}, {"t1", "t3"}, {"t2", "unknown"}, set()):
            mask = self.table.ranks_with_taints(wanted)
            got = set(np.flatnonzero(mask & self.table.occupied_slots()))
            assert got == self.model.having_all(wanted)


TestRankTable = explored(RankTableMatchesModel)


def test_names_beyond_the_bits_are_found_as_well():
    names = [f"name{n}" for n in range(taint_bits.TAINT_BITS + 3)]
    table = a_table(names, names[-1:], [])
    for name in names:
        mask = table.ranks_with_taint(name)
        assert mask.tolist() == [True, name == names[-1], False]


def test_a_row_is_written_without_a_look_at_the_others():
    table, index = RankTable(), PrefixIndex(16)
    table.ensure_slots(1000)
    columns = table.columns
    for slot in range(1000):
        table.prepare_worker(worker := RegisteredWorker(a_worker(slot)))
        table.put_worker(worker, {Rank(slot, 0): index.open_slot()})
    assert table.columns is columns
    assert table.open_slots.all()


def test_first_versions_fit_beside_a_slot():
    """Check that versions fit beside the slot in a kept decision's number after 2**30 changes."""
    versions = [RankTable().version for _ in range(9000)]
    assert len(set(versions)) > 8000
    assert max(versions) + 2**30 < 1 << 63 - decision_ring_layout.SLOT_BITS
