"""Player of migration cases: costs of moves, and plans of moves."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from select_service.core.health.migration.migration_plan import PlannedMove
from select_service.core.health.migration.move_cost import LINKS, CacheLayout, MoveTerms, move_cost
from select_service.core.identity import Rank
from tests.builders.migration_plans import GivenReservation, GivenTarget, plan_moves
from tests.vectors.differences import Difference, differences

Case = dict[str, Any]


def play_bytes(case: Case) -> Iterator[Difference]:
    """Compare the bytes of a block, per shard and in all shards."""
    layout = CacheLayout(**case["model"])
    yield from differences(case["bytes_per_shard"], layout.block_bytes_per_shard, "bytes_per_shard")
    if "bytes_all" in case:
        yield from differences(case["bytes_all"], layout.block_bytes, "bytes_all")


def play_cost(case: Case) -> Iterator[Difference]:
    """Compare the cost of moving one reservation to one target."""
    terms = _terms(case, case["readable"])
    overlap, link = case["overlap_blocks"], LINKS[case["link"]]
    found = move_cost(terms, case["tokens"], overlap, link, case["waiting"], case["rate"])
    yield from differences(case["result"], found._asdict() | {"method": str(found.method)})


def play_plan(case: Case) -> Iterator[Difference]:
    """Compare the planned moves of all reservations of a rank, in order."""
    source = case["source"]
    targets = [_target(t, source["links"].get(t["name"], "unknown")) for t in case["targets"]]
    movables = [_movable(r, case["targets"]) for r in case["reservations"]]
    names = {target.rank: t["name"] for t, target in zip(case["targets"], targets, strict=True)}
    moves = plan_moves(movables, targets, _terms(case, source["readable"]))
    yield from differences(case["plan"], [_move_fields(move, names) for move in moves], "plan")


def _terms(case: Case, readable: bool) -> MoveTerms:
    model = dict(case["model"])
    known = model.get("layers") is not None
    size = CacheLayout(**model).block_bytes_per_shard if known else None
    return MoveTerms(model["block_size"], size, readable, case["max_ms"])


def _target(given: Case, link: str) -> GivenTarget:
    dp_rank = given["name"].partition("/")[2]
    return GivenTarget(
        Rank(given["worker"], int(dp_rank or 0)),
        given["weight"],
        given["total_blocks"],
        given["active_blocks"],
        given["waiting_tokens"],
        LINKS[link],
        given["rate"],
    )


def _movable(given: Case, targets: list[Case]) -> GivenReservation:
    allowed = given["allowed"]
    return GivenReservation(
        given["id"],
        given["priority"],
        given["created"],
        given["tokens"],
        np.array([given["overlap"].get(t["name"], 0) for t in targets], np.float64),
        given["migratable"],
        None if allowed is None else np.array([t["worker"] in allowed for t in targets], np.bool_),
    )


def _move_fields(move: PlannedMove, names: dict[Rank, str]) -> Case:
    shown: Case = move._asdict() | {"method": str(move.method)}
    return shown | {"target": None if move.target is None else names[move.target]}
