"""Tests of the silence log: one line when a rank stops sending events, one when events return."""

import logging

from select_service.adapters.logs.silent_ranks_log import LINES_MAX, SilentRanksLog
from select_service.core.identity import PartitionKey, Rank
from select_service.core.silent_ranks import SilentRank

KEY = PartitionKey("m", "t")


class Silence:
    def __init__(self):
        self.silent = {}

    def begin(self, *worker_ids):
        for worker_id in worker_ids:
            self.silent[worker_id] = SilentRank(Rank(worker_id, 0), KEY, 10.0)


def messages(caplog):
    found = [(record.levelname, record.getMessage(), record.fields) for record in caplog.records]
    caplog.clear()
    return found


def test_each_change_is_logged_once(caplog):
    caplog.set_level(logging.INFO)
    silence = Silence()
    log = SilentRanksLog(silence)
    log.update_ranks(20.0)
    assert messages(caplog) == []
    silence.begin(1)
    for now in (70.0, 71.0):
        log.update_ranks(now)
    rank = {"worker_id": 1, "dp_rank": 0, "model_name": "m", "tenant_id": "t"}
    text = "KV events stopped, bookings assumed"
    assert messages(caplog) == [("WARNING", text, rank | {"seconds": 60.0})]
    silence.silent.clear()
    log.update_ranks(80.0)
    assert messages(caplog) == [("INFO", "KV events came again", rank)]


def test_many_changes_are_counted_in_one_line(caplog):
    silence = Silence()
    silence.begin(*range(LINES_MAX + 3))
    SilentRanksLog(silence).update_ranks(70.0)
    found = messages(caplog)
    assert len(found) == LINES_MAX + 1
    assert found[-1][2] == {"count": 3}
