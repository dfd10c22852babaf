"""Tests of the log of ranks without a connection to their KV events."""

import logging

import pytest

from indexer.sockets.listener_status import UNCONNECTED_S, MissingConnection
from select_service.adapters.logs import kv_connections_log
from select_service.adapters.logs.kv_connections_log import LINES_MAX, REMIND_S, KvConnectionsLog


class Connections:
    """Fake of `Ingest`: the start of each rank's outage by key; None means connected."""

    def __init__(self):
        self.ranks = {}

    def missing_connections(self):
        return (
            (
                key,
                None if since is None else MissingConnection(f"tcp://e:{key[0]}", since, "refused"),
            )
            for key, since in list(self.ranks.items())
        )


@pytest.fixture
def ingest():
    return Connections()


@pytest.fixture
def look(ingest, caplog):
    """Return a function that checks all ranks and returns the log as (level, message, fields)."""
    told = KvConnectionsLog(ingest)

    def check_ranks(now):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            while told.check_step(now):
                pass
        return [(r.levelname, r.getMessage(), r.fields) for r in caplog.records]

    return check_ranks


def test_a_rank_is_logged_once_after_ten_seconds_and_when_it_answers(ingest, look):
    ingest.ranks = {(1, 8): 100.0, (2, 0): None}
    assert look(100.0 + UNCONNECTED_S - 0.1) == []
    fields = {"worker_id": 1, "dp_rank": 8, "endpoint": "tcp://e:1", "error": "refused"}
    assert look(111.0) == [("WARNING", "KV event endpoint unconnected", fields | {"seconds": 11.0})]
    assert look(112.0) == []
    ingest.ranks[1, 8] = None
    assert look(130.0) == [("INFO", "KV event endpoint connected", fields | {"seconds": 30.0})]
    assert look(131.0) == []


def test_after_an_hour_all_that_still_do_not_answer_are_one_line(ingest, look):
    ingest.ranks = {(worker_id, 0): 100.0 for worker_id in range(40)}
    assert len(look(110.0)) == 40
    assert look(109.0 + REMIND_S) == []
    del ingest.ranks[39, 0]
    (line,) = look(110.0 + REMIND_S)
    assert line == (
        "WARNING",
        "KV event endpoints still unconnected",
        {
            "count": 39,
            "ranks": ["0/0", "1/0", "2/0", "3/0", "4/0"],
            "endpoint": "tcp://e:0",
            "error": "refused",
            "seconds": 10.0 + REMIND_S,
        },
    )
    assert look(111.0 + REMIND_S) == []
    assert len(look(110.0 + 2 * REMIND_S)) == 1


def test_some_of_many_ranks_have_lines_and_the_others_are_counted(ingest, look, monkeypatch):
    monkeypatch.setattr(kv_connections_log, "RANKS_PER_STEP", 64)
    ingest.ranks = {(worker_id, 0): 0.0 for worker_id in range(1000)}
    lines = look(20.0)
    assert len(lines) == LINES_MAX + 1
    assert (lines[-1][1], lines[-1][2]["count"]) == (
        "KV event endpoint unconnected (further ranks)",
        1000 - LINES_MAX,
    )
    ingest.ranks = dict.fromkeys(ingest.ranks, None)
    lines = look(21.0)
    assert len(lines) == LINES_MAX + 1
    assert {level for level, _, _ in lines} == {"INFO"}


def test_a_rank_that_leaves_or_listens_elsewhere_is_forgotten(ingest, look):
    ingest.ranks = {(1, 0): 0.0, (2, 0): 0.0}
    assert len(look(20.0)) == 2
    ingest.ranks = {(2, 0): 19.5}
    assert look(21.0) == []
    assert [line[2]["worker_id"] for line in look(30.0)] == [2]
