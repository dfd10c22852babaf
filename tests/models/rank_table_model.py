"""Naive twin of RankTable: a dictionary of rows; every read derives everything else."""

import math
import statistics
from dataclasses import dataclass


@dataclass
class Row:
    rank: tuple
    given: object
    kv_usage: float | None = None
    weight: float = 1.0
    state: str | None = None


class RankTableModel:
    def __init__(self):
        self.rows: dict[int, Row] = {}

    def put(self, slot, rank, given):
        row = self.rows.setdefault(slot, Row(rank, given))
        row.rank, row.given = rank, given

    def drop(self, slot):
        return self.rows.pop(slot).rank

    def set_kv_usage(self, slot, usage):
        changed = self.rows[slot].kv_usage != usage
        self.rows[slot].kv_usage = usage
        return changed

    def set_weight(self, slot, weight, state):
        row = self.rows[slot]
        changed = (row.weight > 0) != (weight > 0)
        row.weight, row.state = weight, state
        return changed

    def mark_closed(self):
        """Return {slot: state} of the ranks that may not be chosen."""
        return {slot: row.state for slot, row in self.rows.items() if not row.weight}

    def workers(self):
        return {row.rank[0] for row in self.rows.values()}

    def slots_of(self, worker_id):
        mine = [(row.rank, slot) for slot, row in self.rows.items() if row.rank[0] == worker_id]
        return [slot for _, slot in sorted(mine)]

    def columns(self, slot):
        """Return open, weight, kv_blocks, batch_tokens, kv_usage and speed."""
        row = self.rows.get(slot)
        if row is None:
            return False, 1.0, math.inf, math.inf, math.nan, 0.0
        blocks, tokens = row.given.total_kv_blocks, row.given.max_num_batched_tokens
        return (
            row.weight > 0,
            row.weight,
            blocks or math.inf,
            math.inf if tokens is None else tokens,
            math.nan if row.kv_usage is None else row.kv_usage,
            row.given.prefill_tokens_per_s or 0.0,
        )

    def usual_speed(self):
        speeds = {row.rank[0]: row.given.prefill_tokens_per_s for row in self.rows.values()}
        declared = [speed for speed in speeds.values() if speed is not None]
        return statistics.median(declared) if declared else 0.0

    def having_all(self, wanted):
        return {s for s, row in self.rows.items() if wanted <= set(row.given.taints)}
