"""Report of the demo: tables of measured values.

Every figure is a count or a percentile taken during the run; figures in virtual time are marked.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from select_service.cli.explain import format_decision
from select_service.sim.demo.demo_fleet import DemoFleet
from select_service.sim.demo.statistics_of_runs import coefficient_of_variation, mean, percentile
from select_service.sim.demo.virtual_world import VirtualWorld
from select_service.sim.demo.workload_driver import OverlapPredictions, ServiceRun


def comparison_table(worlds: Mapping[str, VirtualWorld]) -> Table:
    """Return a table with a column per policy for the same workload."""
    table = Table(title=f"The same workload under {len(worlds)} policies", box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for name in worlds:
        table.add_column(name, justify="right")
    for label, cells in _comparison_rows(list(worlds.values())):
        table.add_row(label, *cells)
    return table


def _comparison_rows(worlds: Sequence[VirtualWorld]) -> list[tuple[str, list[str]]]:
    tallies = [world.tally for world in worlds]
    return [
        ("requests", [f"{t.requests:,}" for t in tallies]),
        ("prompt blocks", [f"{t.prompt_blocks:,}" for t in tallies]),
        ("found in a cache", [f"{t.hit_blocks:,}" for t in tallies]),
        ("hit rate in blocks", [_share_text(t.hit_blocks, t.prompt_blocks) for t in tallies]),
        (
            "  one endless cache",
            [_share_text(t.reachable_blocks, t.prompt_blocks) for t in tallies],
        ),
        ("requests per rank", [_rank_shares_text(world) for world in worlds]),
        ("  variation of it", [_rank_variation(world, "requests") for world in worlds]),
        ("  of prefill time", [_rank_variation(world, "prefill_s") for world in worlds]),
        ("first token, mean *", [_seconds_text(mean(t.first_token_s)) for t in tallies]),
        ("  p50 *", [_seconds_text(percentile(t.first_token_s, 50)) for t in tallies]),
        ("  p99 *", [_seconds_text(percentile(t.first_token_s, 99)) for t in tallies]),
    ]


def latency_table(by_verb: Mapping[str, Sequence[float]]) -> Table:
    """Return a table of wall-clock times of every call, measured by the client."""
    table = Table(title="Latency of the service, measured by the client", box=box.SIMPLE_HEAD)
    for heading in ("call", "calls", "p50 ms", "p90 ms", "p99 ms"):
        table.add_column(heading, justify="left" if heading == "call" else "right")
    for verb, seconds in by_verb.items():
        cells = [f"{percentile(seconds, percent) * 1000:.2f}" for percent in (50, 90, 99)]
        table.add_row(verb, f"{len(seconds):,}", *cells)
    return table


def check_table(run: ServiceRun, fleet: DemoFleet) -> Table:
    """Return a table of the service's predictions against the engines' caches."""
    assert run.events is not None
    table = Table(title="Checked against the engines", box=box.SIMPLE_HEAD, show_header=False)
    table.add_row("overlap predicted when choosing", _predictions_text(run.live))
    table.add_row("overlap of every rank at the end", _predictions_text(run.settled))
    events = run.events
    read = "all read" if events.caught_up else "NOT all read"
    withheld = f", {fleet.lost_batches:,} withheld on purpose" if fleet.lost_batches else ""
    table.add_row("KV event batches", f"{fleet.batches:,} published{withheld}, {read}")
    table.add_row(
        "gaps in the event streams",
        f"{events.gaps:,}, {events.replayed:,} batches replayed, {events.lost:,} lost",
    )
    table.add_row("load left after the last request", "; ".join(run.leaks) or "none")
    return table


def show_summary(
    console: Console,
    worlds: Mapping[str, VirtualWorld],
    run: ServiceRun,
    fleet: DemoFleet,
    timings: Table,
) -> None:
    """Print the whole report."""
    parts: list[RenderableType] = [comparison_table(worlds)]
    parts.append(Text("* modelled, in virtual seconds: see docs/start/quickstart.md", style="dim"))
    parts += [timings, check_table(run, fleet)]
    for part in parts:
        console.print()
        console.print(part)


def show_decision(console: Console, decision: Mapping[str, Any] | None) -> None:
    """Print a decision as `select-service explain` does; None prints nothing."""
    if decision is None:
        return
    console.print("\n[italic]One decision explained[/], see docs/guides/experiments.md\n")
    for line in format_decision(decision):
        console.print(line, markup=False, soft_wrap=True)
    console.print()


def _predictions_text(predictions: OverlapPredictions) -> str:
    text = f"{predictions.exact:,} of {predictions.total:,} exact"
    if predictions.exact < predictions.total:
        text += f" ({predictions.too_low:,} too low, {predictions.too_high:,} too high)"
    return text


def _share_text(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _rank_shares_text(world: VirtualWorld) -> str:
    shares = [line.requests / max(1, world.tally.requests) for line in world.lines]
    return f"{min(shares):.0%} to {max(shares):.0%}"


def _rank_variation(world: VirtualWorld, figure: str) -> str:
    return f"{coefficient_of_variation([getattr(line, figure) for line in world.lines]):.3f}"


def _seconds_text(value: float) -> str:
    return f"{value:.3f} s"
