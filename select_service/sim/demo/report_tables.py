"""Report of the demo: tables of measured values.

Every figure is a count or a percentile taken during the run; figures in virtual time are marked.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from select_service.cli.explain import format_decision
from select_service.sim.demo.conversations import ConversationWorkload
from select_service.sim.demo.demo_fleet import DemoFleet
from select_service.sim.demo.workload_driver import OverlapPredictions, ServiceRun
from select_service.sim.engine.replay_world import RunRecord


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of all values do not exceed."""
    return float(np.percentile(values, percent, method="inverted_cdf"))


def comparison_table(workload: ConversationWorkload, records: Mapping[str, RunRecord]) -> Table:
    """Return a table with a column per policy for the same workload."""
    table = Table(title=f"The same workload under {len(records)} policies", box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for name in records:
        table.add_column(name, justify="right")
    reachable = workload.count_reachable()
    columns = [
        _comparison_cells(record, workload.block_size, reachable) for record in records.values()
    ]
    for label in columns[0]:
        table.add_row(label, *(column[label] for column in columns))
    return table


def _comparison_cells(record: RunRecord, block_size: int, reachable: int) -> dict[str, str]:
    histories = record.histories
    blocks = sum(each.turn.prompt_tokens // block_size for each in histories)
    hits = sum(each.cached // block_size for each in histories)
    ranks = np.bincount([each.rank for each in histories], minlength=len(record.work))
    shares = ranks / len(histories)
    first_s = [each.first_s - each.arrived_s for each in histories]
    computed = np.array([work.prompt_tokens for work in record.work])
    return {
        "requests": f"{len(histories):,}",
        "prompt blocks": f"{blocks:,}",
        "found in a cache": f"{hits:,}",
        "hit rate in blocks": _share_text(hits, blocks),
        "  one endless cache": _share_text(reachable, blocks),
        "requests per rank": f"{shares.min():.0%} to {shares.max():.0%}",
        "  variation of it": f"{ranks.std() / ranks.mean():.3f}",
        "  of computed tokens": f"{computed.std() / computed.mean():.3f}",
        "first token, mean *": f"{np.mean(first_s):.3f} s",
        "  p50 *": f"{percentile(first_s, 50):.3f} s",
        "  p99 *": f"{percentile(first_s, 99):.3f} s",
    }


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
    console: Console, comparison: Table, run: ServiceRun, fleet: DemoFleet, timings: Table
) -> None:
    """Print the whole report."""
    parts: list[RenderableType] = [comparison]
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
