"""Two services with workers for pairs, and the state on which both must agree."""

import json
import re
from time import monotonic
from typing import Any

import msgspec
import numpy as np

from indexer.hashing.block_hashing import compute_block_hashes
from indexer.tiers import Tier
from select_service.core.identity import Rank
from tests.builders import worker_body
from tests.fastpath.prompts import get, post, prompt_of
from tests.fastpath.test_equality import observed_of, timeless_metrics
from tests.fastpath.two_services import Side, TwoServices

ROLES = {1: "prefill", 2: "prefill", 3: "decode", 4: "decode", 5: "aggregated"}
KINDS = (None, "nixl", "mooncake", "sglang", "lmcache", "moriio", "tensorrt_llm")
TIMED = re.compile(r'"seconds_ago":[0-9.]+')


def pair_worker(worker_id: int, kind: str | None, ranks: int) -> dict[str, Any]:
    """Return the registration of a worker.

    kind: connector of the worker; None means no connector
    """
    transfer = {"kind": kind, "host": f"h{worker_id % 3}", "link_gbps": 100.0}
    transfer |= {"bytes_per_token": 131072.0, "bootstrap_host": "b", "bootstrap_port": 8998}
    if kind == "moriio":
        transfer |= {"notify_port": 61005, "handshake_port": 6301}
    link = {"kv_transfer": transfer} if kind else {}
    return worker_body(
        worker_id,
        model_name="default",
        role=ROLES[worker_id],
        data_parallel_size=ranks,
        total_kv_blocks=4000,
        **link,
    )


def pair_services(*flags: str, kind: str | None = "nixl", ranks: int = 1) -> TwoServices:
    """Return two services of five workers, both of which observe from the first request on."""
    two = TwoServices("--policy", "work", "--decisions", "64", *flags)
    for side in sides_of(two):
        side.selector.followers.traffic.close_slots(monotonic())
    for worker_id in ROLES:
        answer = two.send(post("/workers", pair_worker(worker_id, kind, ranks)))
        assert answer.startswith(b"HTTP/1.1 201"), answer
    return two


def book_first(two: TwoServices, name: str = "first") -> None:
    """Book a pair by the ordinary path, so that the ledger learns the partition."""
    body = {"reservation_id": name, "local": "never", **prompt_of(9, True)}
    assert two.send(post("/select_pair_and_reserve", body)).startswith(b"HTTP/1.1 200")


def sides_of(two: TwoServices) -> tuple[Side, Side]:
    return two.fast, two.ordinary


def store(two: TwoServices, worker_id: int, blocks: int) -> None:
    """Store the first blocks of all prompts on a rank of both services, if the rank exists."""
    tokens = np.array(prompt_of(4 * blocks, as_tokens=True)["token_ids"], np.uint32)
    hashes = compute_block_hashes(tokens, 4)
    for side in sides_of(two):
        for partition in side.selector.fleet.partitions.values():
            table = partition.table
            if table.find_slot(Rank(worker_id, 0)) is not None:
                table.writer_of(Rank(worker_id, 0)).store(Tier.GPU, None, hashes, hashes)


def later(two: TwoServices, seconds: float) -> None:
    """End transfers and leases as after some seconds."""
    for side in sides_of(two):
        selector, now = side.selector, monotonic() + seconds
        while selector.pairs.book.expire_transfers(now):
            pass
        while selector.expire_reservations(now).has_more:
            pass
        selector.run_pending(now)


def pairs_of(side: Side) -> Any:
    """Return everything that a service has of pairs, with the tokens in transit by host."""
    pairs, book = side.selector.pairs, side.selector.pairs.book
    present = list(side.selector.fleet.partitions.values())
    states = [pairs.links._of[each] for each in present if pairs.links.find_traffic(each)]
    links = [(state.placer.waiting_by_host(), state.traffic.words.tolist()) for state in states]
    found = {}
    for name in sorted(book._pairs):
        pair = book.find_pair(name)
        assert pair is not None
        request = pair.job.request
        fields = ("local", "reservation_id", "selection_id", "expected_output_tokens")
        found[name] = (
            [array.tolist() for array in pair.job.prompt[:2]],
            pair.job.prompt.isl_tokens,
            [getattr(request, field) for field in fields],
            msgspec.to_builtins(pair.answer),
        )
    moving = {
        name: (each.route, each.tokens, each.level, each.predicted_s)
        for name, each in book._transfers.items()
    }
    counts = {**vars(book.counts), "observed_s": None}
    lists = list(book._ending), sorted(book._ended_legs), list(book.lost_legs), sorted(book.legs)
    return (
        links,
        found,
        moving,
        counts,
        lists,
        pairs.decided.tolist(),
    )


def reservations_of(side: Side) -> list[dict[str, Any]]:
    """Return the rows of all reservations, both legs apart, without times."""
    answer = side.send(get("/reservations?limit=1000&separate_legs=true&sequence_hashes=true"))
    rows = json.loads(answer.partition(b"\r\n\r\n")[2])["reservations"]
    return [{k: v for k, v in row.items() if not k.endswith("_seconds")} for row in rows]


def check_agreement(two: TwoServices) -> None:
    """Check that pairs, reservations, load, observations and explanations are the same."""
    fast, ordinary = sides_of(two)
    assert observed_of(fast) == observed_of(ordinary)
    assert reservations_of(fast) == reservations_of(ordinary)
    assert pairs_of(fast) == pairs_of(ordinary)
    loads = [side.send(get("/loads")) for side in (fast, ordinary)]
    assert loads[0] == loads[1]
    for name in pairs_of(fast)[1]:
        views = [side.send(get(f"/decisions/{name}")).decode() for side in (fast, ordinary)]
        views = [TIMED.sub("", view.partition("\r\n\r\n")[2]) for view in views]
        assert views[0] == views[1]
    for side in (fast, ordinary):
        side.selector.pairs.book.check_invariants()


def observation_of(side: Side) -> dict[str, Any]:
    """Return the observation of all requests, without values that depend on time."""
    answer = side.send(get("/planner/observation?window_s=3600"))
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    timed = ("window_s", "complete", "arrival_variation", "prefill_s", "decode_s")
    times = {name: sum(found[name]["counts"]) for name in ("ttft_s", "itl_s") if name in found}
    samples = {name: len(found[name]) for name in ("prefill_s", "decode_s") if name in found}
    return {k: v for k, v in found.items() if k not in timed} | times | {"samples": samples}


def listed_decisions(side: Side) -> list[dict[str, Any]]:
    """Return the rows of all kept decisions, without times."""
    answer = side.send(get("/decisions?limit=1000"))
    rows = json.loads(answer.partition(b"\r\n\r\n")[2])["decisions"]
    # Decisions of the same millisecond come in any order.
    return sorted((row | {"seconds_ago": None} for row in rows), key=json.dumps)


def check_metrics(two: TwoServices) -> None:
    """Check that both count, observe and list the same."""
    observations, lists = zip(
        *((observation_of(side), listed_decisions(side)) for side in sides_of(two)), strict=True
    )
    assert observations[0] == observations[1]
    assert lists[0] == lists[1]
    fast, ordinary = (set(timeless_metrics(side.send(get("/metrics")))) for side in sides_of(two))
    assert (fast - ordinary, ordinary - fast) == (set(), set())
