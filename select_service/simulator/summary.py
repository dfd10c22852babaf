"""What the demo prints at the end: tables of what was measured, nothing else.

Every figure is a count or a percentile taken during the run; those in virtual time are marked so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from select_service.explaining import explained
from select_service.simulator.drive import Predictions, ServiceRun
from select_service.simulator.figures import mean, percentile, variation
from select_service.simulator.fleet import Fleet
from select_service.simulator.world import World


def comparison(worlds: Mapping[str, World]) -> Table:
    """One column per policy, the same workload in each."""
    table = Table(title=f"The same workload under {len(worlds)} policies", box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for name in worlds:
        table.add_column(name, justify="right")
    for label, cells in _comparison_rows(list(worlds.values())):
        table.add_row(label, *cells)
    return table


def _comparison_rows(worlds: Sequence[World]) -> list[tuple[str, list[str]]]:
    tallies = [world.tally for world in worlds]
    return [
        ("requests", [f"{t.requests:,}" for t in tallies]),
        ("prompt blocks", [f"{t.prompt_blocks:,}" for t in tallies]),
        ("found in a cache", [f"{t.hit_blocks:,}" for t in tallies]),
        ("hit rate in blocks", [_share(t.hit_blocks, t.prompt_blocks) for t in tallies]),
        ("  one endless cache", [_share(t.reachable_blocks, t.prompt_blocks) for t in tallies]),
        ("requests per rank", [_shares(world) for world in worlds]),
        ("  variation of it", [_rank_variation(world, "requests") for world in worlds]),
        ("  of prefill time", [_rank_variation(world, "prefill_s") for world in worlds]),
        ("first token, mean *", [_seconds(mean(t.first_token_s)) for t in tallies]),
        ("  p50 *", [_seconds(percentile(t.first_token_s, 50)) for t in tallies]),
        ("  p99 *", [_seconds(percentile(t.first_token_s, 99)) for t in tallies]),
    ]


def latencies(by_verb: Mapping[str, Sequence[float]]) -> Table:
    """Wall-clock time of every call, from the client's side of the connection."""
    table = Table(title="Latency of the service, measured by the client", box=box.SIMPLE_HEAD)
    for heading in ("call", "calls", "p50 ms", "p90 ms", "p99 ms"):
        table.add_column(heading, justify="left" if heading == "call" else "right")
    for verb, seconds in by_verb.items():
        cells = [f"{percentile(seconds, percent) * 1000:.2f}" for percent in (50, 90, 99)]
        table.add_row(verb, f"{len(seconds):,}", *cells)
    return table


def checks(run: ServiceRun, fleet: Fleet) -> Table:
    """The service's claims against the engines' truth."""
    assert run.events is not None
    table = Table(title="Checked against the engines", box=box.SIMPLE_HEAD, show_header=False)
    table.add_row("overlap predicted when choosing", _predictions(run.live))
    table.add_row("overlap of every rank at the end", _predictions(run.settled))
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
    console: Console, worlds: Mapping[str, World], run: ServiceRun, fleet: Fleet, timings: Table
) -> None:
    """Print the whole report."""
    parts: list[RenderableType] = [comparison(worlds)]
    parts.append(Text("* modelled, in virtual seconds: see docs/demo.md", style="dim"))
    parts += [timings, checks(run, fleet)]
    for part in parts:
        console.print()
        console.print(part)


def show_decision(console: Console, decision: Mapping[str, Any] | None) -> None:
    """Print one decision as `select-service explain` does; None: there is none."""
    if decision is None:
        return
    console.print("\n[italic]One decision explained[/], see docs/explaining.md\n")
    for line in explained(decision):
        console.print(line, markup=False, soft_wrap=True)
    console.print()


def _predictions(predictions: Predictions) -> str:
    text = f"{predictions.exact:,} of {predictions.total:,} exact"
    if predictions.exact < predictions.total:
        text += f" ({predictions.too_low:,} too low, {predictions.too_high:,} too high)"
    return text


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _shares(world: World) -> str:
    shares = [line.requests / max(1, world.tally.requests) for line in world.lines]
    return f"{min(shares):.0%} to {max(shares):.0%}"


def _rank_variation(world: World, figure: str) -> str:
    return f"{variation([getattr(line, figure) for line in world.lines]):.3f}"


def _seconds(value: float) -> str:
    return f"{value:.3f} s"
