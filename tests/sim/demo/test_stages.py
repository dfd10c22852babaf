"""Tests of the demo's progress lines where no terminal shows a moving line."""

import io

from rich.console import Console

from select_service.sim.demo.progress_display import PLAIN_EVERY_S, ProgressDisplay


def test_a_stage_begins_with_a_line_and_prints_progress_at_intervals() -> None:
    now, shown = [100.0], io.StringIO()
    stages = ProgressDisplay(Console(file=shown), clock=lambda: now[0])
    now[0] += 1.5
    with stages.show_stage("compiling [the kernels]") as detail:
        detail("1 of 9")
        now[0] += PLAIN_EVERY_S
        detail("2 of 9")
        detail("3 of 9")
        now[0] += PLAIN_EVERY_S
        detail("4 of 9")
    assert shown.getvalue().splitlines() == [
        "    1.5 s  compiling [the kernels] ...",
        "    6.5 s  compiling [the kernels]: 2 of 9",
        "   11.5 s  compiling [the kernels]: 4 of 9",
    ]


def test_a_terminal_gets_no_plain_lines() -> None:
    shown = io.StringIO()
    stages = ProgressDisplay(Console(file=shown, force_terminal=True, width=80))
    with stages.show_stage("starting") as detail:
        detail("soon")
    assert " s  starting" not in shown.getvalue()
