"""Rank tables for tests."""

from indexer.index.prefix_index import PrefixIndex
from select_service.core.identity import Rank
from select_service.core.workers.rank_table import RankTable
from select_service.core.workers.worker_catalog import RegisteredWorker
from tests.builders import a_worker


def a_table(*taints):
    """Return a table with one worker of one rank for each list of taints."""
    index, table = PrefixIndex(16), RankTable()
    for worker_id, names in enumerate(taints):
        writer = index.open_slot()
        table.ensure_slots(index.n_slots)
        worker = RegisteredWorker(a_worker(worker_id, taints=names), "schedulable")
        table.prepare_worker(worker)
        table.put_worker(worker, {Rank(worker_id, 0): writer})
    return table
