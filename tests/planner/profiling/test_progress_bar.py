"""Tests of the progress bar in a terminal, and of progress lines in a log."""

import io

from select_service.planner.profiling.progress_bar import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_one_line_that_is_written_over() -> None:
    seconds, output = iter([0.0, 30.0, 60.0]), Terminal()
    bar = ProgressBar(4, output, lambda: next(seconds))
    bar.add_step("a long text")
    bar.add_step("short")
    bar.finish()
    first, second = output.getvalue().split("\r")[1:]
    assert first == "[######..................] 1/4 a long text, 1:30 left"
    assert second.rstrip() == "[############............] 2/4 short, 1:00 left"
    assert len(second.rstrip("\n")) == len(first)


def test_a_log_gets_a_line_a_step() -> None:
    output = io.StringIO()
    bar = ProgressBar(2, output)
    bar.add_step("a")
    bar.add_step("b")
    bar.finish()
    assert output.getvalue() == "1/2 a\n2/2 b\n"
