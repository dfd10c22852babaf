"""The order of work: cells in turns, each with what disturbed it; parts of one fleet together."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from scripts.bench import fleet
from scripts.bench.contenders import Contender
from scripts.bench.http_load import LoadResult
from scripts.bench.suite.machine import Watch
from scripts.bench.suite.samples import Measure, Row, Sample, Table
from scripts.bench.suite.stages import Places, Site, filled


class WrongAnswersError(Exception):
    """A service has refused, or has cut a connection: what it did then is no measurement."""


def checked(result: LoadResult) -> LoadResult:
    """Raises WrongAnswersError."""
    if result.errors or not result.requests:
        raise WrongAnswersError(f"{result.errors} errors, {result.requests} answers")
    return result


class Depth(IntEnum):
    """SLOW: also what takes minutes by itself."""

    QUICK = 0
    FULL = 1
    SLOW = 2


class Extent(NamedTuple):
    """How much is measured."""

    repeats: int
    cell_s: int
    depth: Depth

    def of(self, quick: Sequence[Any], more: Sequence[Any], slow: Sequence[Any] = ()) -> list[Any]:
        """Values for rows, in order; those of a lesser depth are measured as well."""
        return sorted(
            {value for values in (quick, more, slow)[: self.depth + 1] for value in values}
        )


class Run:
    """What every part gets, and where it puts what it found."""

    def __init__(
        self, contenders: Sequence[Contender], extent: Extent, only: Sequence[str] = ()
    ) -> None:
        """only: what the label of a row must have one of, to be measured; nothing: all are"""
        self.contenders, self.extent, self._only = contenders, extent, only
        self.known = fleet.conversations()
        self.tables: dict[str, Table] = {}
        self.problems: list[str] = []

    def go_on(self, tables: Sequence[Table], problems: Sequence[str]) -> None:
        """With what an earlier run has found: its complete rows are not measured again."""
        self.tables = {table.title: table for table in tables}
        self.problems = list(problems)

    def wants(
        self,
        table: Table,
        row: Row,
        contenders: Sequence[Contender] | None = None,
        repeats: int | None = None,
    ) -> bool:
        """Is the row to be measured?  Then what there is of it is forgotten.

        contenders, repeats: of whom, and how often, when that is not all, and as often as others
        """
        if self._only and not any(text in row.label for text in self._only):
            return False
        names = [each.name for each in (self.contenders if contenders is None else contenders)]
        if table.is_complete(row.label, names, repeats or self.extent.repeats):
            return False
        table.forget(row.label)
        return True

    def bodies(self, n_blocks: int) -> list[bytes]:
        """Prompts as hashes."""
        return fleet.select_bodies(self.known, n_blocks)

    def token_bodies(self, n_tokens: int, bytes_max: int) -> list[bytes]:
        """Prompts as tokens, fewer where they are long."""
        (first,) = fleet.token_bodies(self.known, n_tokens, 1)
        n_bodies = min(fleet.BODIES, max(1, bytes_max // len(first)))
        return fleet.token_bodies(self.known, n_tokens, n_bodies)

    def table(
        self,
        title: str,
        row_name: str,
        measures: Sequence[Measure],
        *,
        note: str = "",
        judged: int = 0,
        curve: str = "",
    ) -> Table:
        """The one with this title, made when it is first asked for."""
        if title not in self.tables:
            self.tables[title] = Table(
                title, row_name, measures, note=note, judged=judged, curve=curve
            )
        return self.tables[title]

    def turns(
        self, table: Table, row: Row, sites: Sequence[Site], measure: Callable[[Site], Any]
    ) -> None:
        """One row: all sites in turn, again and again.  measure: site -> one value per measure."""
        if not self.wants(table, row):
            return
        _say(f"{table.title}: {row.label}")
        for _ in range(self.extent.repeats):
            for place in sites:
                self.turn(table, row, place, measure)

    def sample(
        self,
        table: Table,
        row: Row,
        name: str,
        measure: Callable[[], tuple[tuple[float, ...], float | None]],
    ) -> None:
        """measure: () -> (one value per measure, CPU seconds of a service on its own CPU)"""
        watch = Watch()
        try:
            values, cpu_s = measure()
        except WrongAnswersError as error:
            self.problems.append(f"{table.title}, {row.label}, {name}: {error}")
            table.add(row, name, Sample(None, watch.noise(None)))
        else:
            table.add(row, name, Sample(values, watch.noise(cpu_s)))

    def turn(self, table: Table, row: Row, place: Site, measure: Callable[[Site], Any]) -> None:
        """One sample of one site."""

        def measured() -> tuple[tuple[float, ...], float | None]:
            cpu = place.running.cpu_s()
            values = measure(place)
            return tuple(values), place.running.cpu_s() - cpu if place.is_pinned else None

        self.sample(table, row, place.name, measured)

    def compare_answers(self, row: Row, places: Places, bodies: Sequence[bytes]) -> None:
        """Do all say the same of the first prompts?  Ties may go to different workers, so what is
        compared is how much there is to prefill."""
        for body in bodies[:4]:
            prompt = json.loads(body)
            told = {
                place.name: place.running.call("POST", "/select", prompt)[
                    "effective_prefill_tokens"
                ]
                for place in places.sites
            }
            if len(set(told.values())) > 1:
                self.problems.append(f"{row.label}: effective_prefill_tokens differ: {told}")


class Part(NamedTuple):
    """workers: sizes of the fleets beside which it is measured, with services that hold blocks and
    that it shares with other parts; none when it starts its services itself, and gets no places."""

    name: str
    what: str
    workers: tuple[int, ...]
    measure: Callable[[Run, Places], None]
    depth: Depth = Depth.QUICK


def work_through(run: Run, parts: Sequence[Part], keep: Callable[[], None] = lambda: None) -> None:
    """Parts of one fleet together, in the order of the table; a part that fails does not end it.

    keep: called after each, so that what is found is not lost with the process
    """
    for workers in sorted({size for part in parts for size in part.workers}):
        with _reporting(run, f"a fleet of {workers}"), _fleet(run, workers) as places:
            for part in parts:
                if workers in part.workers:
                    _do(run, part, places)
                    keep()
    for part in parts:
        if not part.workers:
            _do(run, part, Places(0, ()))
            keep()


def _fleet(run: Run, workers: int) -> contextlib.AbstractContextManager[Places]:
    _say(f"starting and filling fleets of {workers}")
    return filled(run.contenders, run.known, workers)


def _do(run: Run, part: Part, places: Places) -> None:
    begun = time.monotonic()
    with _reporting(run, part.name):
        part.measure(run, places)
    _say(f"{part.name}: {time.monotonic() - begun:.0f} s")


@contextlib.contextmanager
def _reporting(run: Run, name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        run.problems.append(f"{name}: {type(error).__name__}: {error}"[:2000])
        _say(run.problems[-1])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
