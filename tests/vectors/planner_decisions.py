"""Player of replica counts: sizing, merging of proposals, GPU budgets, stabiliser."""

from collections.abc import Iterator
from typing import Any

from select_service.planner.core import reconcile
from select_service.planner.core.budgets import gpu_budget
from select_service.planner.core.proposers import queue_sizing
from select_service.planner.core.reasons import Reason
from select_service.planner.core.replicas.stabiliser import (
    Stabiliser,
    StabiliserInput,
    StabiliserSettings,
)
from select_service.planner.core.tick_input import LengthBins
from tests.vectors.differences import Difference, differences

Case = dict[str, Any]


def play_erlang(case: Case) -> Iterator[Difference]:
    """Compare the probability that a request waits."""
    waits = queue_sizing.erlang_c(case["servers"], case["offered"])
    yield from differences(case["waits"], waits, "waits")


def play_prefill(case: Case) -> Iterator[Difference]:
    """Compare the replicas, the attainment, and whether the target can be met."""
    lengths = _bins(case["isl"])
    base, slope = case["seconds_base"], case["seconds_per_token"]
    service_s = [base + slope * tokens for tokens in lengths.means]
    queue = queue_sizing.make_prefill_queue(lengths, service_s, case["rate"], case["ca2"])
    size = queue_sizing.size_prefill(queue, case["slo_s"], case["wanted"])
    reason = "ok" if size.reason is Reason.SCALE else str(size.reason)
    found = {"replicas": size.replicas, "attainment": size.attainment, "reason": reason}
    yield from differences({key: case[key] for key in found}, found, "prefill")


def play_decode(case: Case) -> Iterator[Difference]:
    """Compare the replicas, the batch of one replica, and the inter-token latency at that batch."""
    base, of_request, of_token = case["forward"]
    mean, square = queue_sizing.first_two_moments(_bins(case["contexts"]))
    load = queue_sizing.DecodeLoad(case["rate"], case["osl"], mean, square)
    engine = queue_sizing.DecodeCapability(
        lambda live, kv: (base + of_request * live + of_token * kv) / case["accept"],
        case["kv_tokens"],
        case["seqs"],
    )
    size = queue_sizing.size_decode(load, engine, case["itl_s"])
    found = {"replicas": size.replicas, "batch": size.batch, "itl_s_at_batch": size.itl_s}
    yield from differences({key: case[key] for key in found}, found, "decode")


def _bins(values: list[float]) -> LengthBins:
    return LengthBins(means=tuple(values), counts=(1.0,) * len(values))


def play_merge(case: Case) -> Iterator[Difference]:
    """Compare the replica count of each role, or the early end of the tick."""
    proposals = [_proposal(result) for result in case["results"]]
    merged = reconcile.reconcile_proposals(
        proposals, case["baseline"], set_allowed=case["set_allowed"]
    )
    ended = merged.rejected is not None
    found: Case = {
        "short_circuited": ended,
        "reason": merged.rejected or "",
        "set_dropped": list(merged.set_dropped),
    }
    yield from differences({key: case[key] for key in found}, found, "merge")
    if not ended:
        yield from differences(case["targets"], merged.targets, "targets")


def _proposal(result: Case) -> reconcile.Proposal:
    reject = result.get("reject")
    override = result.get("override")
    targets = None if override is None else tuple(_target(at) for at in override)
    return reconcile.Proposal(
        source=result["plugin"],
        priority=result["priority"],
        final=result["final"],
        targets=targets,
        reject=None if reject in (None, False) else _why(reject, result),
    )


def _target(at: Case) -> reconcile.ProposedCount:
    return reconcile.ProposedCount(at["component"], reconcile.BoundType(at["type"]), at["replicas"])


def _why(reject: object, result: Case) -> str:
    if isinstance(reject, dict):
        return str(reject.get("reason", ""))
    return reject if isinstance(reject, str) else str(result.get("reason", ""))


def play_budget_pair(case: Case) -> Iterator[Difference]:
    """Compare the results of all three budget policies for a proposal of two roles."""
    limits = gpu_budget.GpuBudget(
        case["min_gpus"], case["max_gpus"], tuple(case["gpus"]), tuple(case["min_endpoints"])
    )
    current, proposed = tuple(case["current"]), tuple(case["proposed"])
    guarded = gpu_budget.guard_proposal(current, proposed, limits)
    found = {
        "proportional": list(gpu_budget.fit_proportional(proposed, limits)),
        "directional": list(gpu_budget.fit_directional(current, proposed, limits)),
        "guard": [*guarded.pair, guarded.reason],
    }
    yield from differences({key: case[key] for key in found}, found, "budget")


def play_budget_single(case: Case) -> Iterator[Difference]:
    """Compare the results of the budget policies for a single role."""
    limits = gpu_budget.GpuBudget(
        case["min_gpus"], case["max_gpus"], (case["gpus"], 0), (case["min_endpoint"], 0)
    )
    found = {
        "proportional": gpu_budget.fit_single_role(case["proposed"], limits),
        "guard": list(gpu_budget.guard_single_role(case["current"], case["proposed"], limits)),
    }
    yield from differences({key: case[key] for key in found}, found, "budget")


def play_stabiliser(case: Case) -> Iterator[Difference]:
    """Compare the step after each target in a history of proposed targets."""
    stabiliser = Stabiliser(StabiliserSettings(**case["settings"]))
    for at, row in enumerate(case["rows"]):
        now, current, pending, wanted, target, reason = row
        standing = StabiliserInput(current, pending, case["low"], case["high"])
        step = stabiliser.next_step(now, standing, wanted)
        yield from differences([target, reason], [step.target, step.reason], f"rows[{at}]")
