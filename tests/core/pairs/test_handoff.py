"""Tests of the parameters of the hand-over, by connector."""

from random import Random

import pytest

from select_service.core.pairs.handoff import GLOBAL_REQUEST_IDS, make_handoff
from select_service.core.placement.router_config import RouterConfig
from tests.builders import a_selector, a_worker

PREFILL, DECODE = 1, 2


def handoff_of(prefill=None, decode=None, *, dp_rank=0, dp_size=1, seed=0):
    """Return the hand-over between two workers, given their fields `kv_transfer`."""
    selector = a_selector(RouterConfig(policy="work"))
    endpoint = "http://prefill:8000"
    fields = {"data_parallel_size": dp_size, "endpoint": endpoint, "kv_transfer": prefill}
    selector.register_worker(a_worker(PREFILL, role="prefill", **fields))
    fields = {"endpoint": "http://[fd00::2]:8000", "kv_transfer": decode}
    selector.register_worker(a_worker(DECODE, role="decode", **fields))
    (partition,) = selector.fleet.partitions.values()
    rows = {
        (row.rank.worker_id, row.rank.dp_rank): row
        for row in (partition.table.row_at(slot) for _, slot in partition.table.iterate_slots())
    }
    return make_handoff(rows[PREFILL, dp_rank], rows[DECODE, 0], Random(seed))


def test_an_unregistered_connector_is_named_as_missing():
    for given in (None, {"host": "a"}):
        handoff = handoff_of(given)
        assert (handoff.order, handoff.missing) == ("sequential", ["kind"])


def test_nixl_passes_the_reply_on():
    handoff = handoff_of({"kind": "nixl"})
    assert handoff.prefill_params == {
        "max_tokens": 1,
        "stream": False,
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
    }
    assert (handoff.order, handoff.peer_binding) == ("sequential", False)
    assert handoff.pass_on == handoff.reply_path == "kv_transfer_params"
    assert not handoff.missing


def test_mooncake_gives_the_url_of_the_bootstrap_server_and_the_engine_of_the_rank():
    given = {"kind": "mooncake", "engine_ids": {0: "zero", 1: "one"}}
    handoff = handoff_of(given, dp_rank=1, dp_size=2)
    here = handoff.prefill_params["kv_transfer_params"]
    there = handoff.decode_params["kv_transfer_params"]
    assert here["transfer_id"] == there["transfer_id"] != ""
    assert (here["do_remote_decode"], here["do_remote_prefill"]) == (True, False)
    assert (there["do_remote_decode"], there["do_remote_prefill"]) == (False, True)
    assert there["remote_bootstrap_addr"] == "http://prefill:8998"
    assert there["remote_engine_id"] == "one"
    assert (handoff.order, handoff.peer_binding, handoff.missing) == ("concurrent", True, [])


def test_mooncake_brackets_an_ipv6_address_and_names_missing_fields():
    given = {"kind": "mooncake", "bootstrap_host": "fd00::1", "bootstrap_port": 9000}
    handoff = handoff_of(given)
    there = handoff.decode_params["kv_transfer_params"]
    assert there["remote_bootstrap_addr"] == "http://[fd00::1]:9000"
    assert "remote_engine_id" not in there
    assert handoff.missing == ["engine_ids"]


def test_lmcache_needs_no_parameters():
    handoff = handoff_of({"kind": "lmcache"})
    assert handoff.prefill_params == {"max_tokens": 1, "stream": False}
    assert (handoff.order, handoff.missing) == ("sequential", [])


def test_moriio_in_read_mode_passes_the_reply_on_with_a_transfer_id():
    handoff = handoff_of({"kind": "moriio"})
    assert handoff.prefill_params["kv_transfer_params"]["transfer_id"].startswith("xfer-")
    assert (handoff.order, handoff.pass_on) == ("sequential", "kv_transfer_params")


def test_moriio_in_write_mode_gives_each_worker_the_address_of_the_other():
    ports = {"kind": "moriio", "handshake_port": 6301, "notify_port": 61005}
    handoff = handoff_of(ports, {**ports, "notify_port": 61006}, dp_rank=1, dp_size=4)
    here = handoff.prefill_params["kv_transfer_params"]
    there = handoff.decode_params["kv_transfer_params"]
    assert (here["remote_host"], here["remote_notify_port"]) == ("[fd00::2]", 61006)
    assert (there["remote_host"], there["remote_notify_port"]) == ("prefill", 61005)
    assert (here["remote_dp_size"], there["remote_dp_size"]) == (1, 4)
    assert (there["remote_dp_rank"], there["remote_dp_rank_override"]) == (1, True)
    assert here["transfer_id"] == there["transfer_id"]
    assert (handoff.order, handoff.missing) == ("concurrent", [])
    assert handoff_of(ports).missing == ["handshake_port", "notify_port"]


@pytest.mark.parametrize("seed", range(50))
def test_a_room_of_sglang_leads_to_its_rank(seed):
    given = {"kind": "sglang", "bootstrap_port": 8998}
    for dp_rank in range(3):
        handoff = handoff_of(given, dp_rank=dp_rank, dp_size=3, seed=seed)
        room = handoff.prefill_params["bootstrap_room"]
        assert 0 <= room < 2**63
        assert room % 3 == dp_rank
        assert handoff.prefill_params == handoff.decode_params
        assert handoff.prefill_params["bootstrap_host"] == "prefill"
        assert handoff.prefill_params["bootstrap_port"] == 8998
        assert "max_tokens" not in handoff.prefill_params


def test_a_room_of_sglang_stays_below_its_bound():
    class Highest(Random):
        def getrandbits(self, k):
            return (1 << k) - 1

    selector = a_selector(RouterConfig(policy="work"))
    given = {"kind": "sglang"}
    selector.register_worker(a_worker(1, data_parallel_size=5, kv_transfer=given))
    (partition,) = selector.fleet.partitions.values()
    for _, slot in partition.table.iterate_slots():
        row = partition.table.row_at(slot)
        room = make_handoff(row, row, Highest()).prefill_params["bootstrap_room"]
        assert 2**63 - 10 < room < 2**63
        assert room % 5 == row.rank.dp_rank


def test_tensorrt_llm_takes_the_parameters_from_the_first_choice():
    handoff = handoff_of({"kind": "tensorrt_llm"})
    here = handoff.prefill_params["disaggregated_params"]
    there = handoff.decode_params["disaggregated_params"]
    assert (here["request_type"], there["request_type"]) == ("context_only", "generation_only")
    assert here["disagg_request_id"] == there["disagg_request_id"]
    assert GLOBAL_REQUEST_IDS[0] <= here["disagg_request_id"] < GLOBAL_REQUEST_IDS[1]
    assert handoff.pass_on == "disaggregated_params"
    assert handoff.reply_path == "choices.0.disaggregated_params"
