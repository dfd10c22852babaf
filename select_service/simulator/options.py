"""The command line of the demo.  Standard library only: it is judged before any installation."""

import argparse
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

REQUESTS_DEFAULT = 2000
LINE_BYTES_MAX = 4 * 2**20
TRACE_FIELDS = {"timestamp", "output_length", "hash_ids"}


class Options(NamedTuple):
    """What the command line decided."""

    requests: int
    workers: int
    ranks: int
    blocks: int
    block_size: int
    seed: int
    trace: Path | None
    speedup: float
    lose: float
    port: int
    once: bool


def parse_options(arguments: list[str] | None = None) -> Options:
    """Read `arguments` (sys.argv when None).  Exits with status 2 when they make no sense."""
    return Options(**vars(_parser().parse_args(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Start the selection service and a fleet of simulated engines, drive a "
        "workload through the HTTP API, show what came of it, and stay up for your own requests.",
        epilog="Ends with status 0 when every request went through, nothing stayed booked and "
        "every checked overlap was right; 1 otherwise.",
    )
    add = parser.add_argument
    add("--once", action="store_true", help="exit after the report instead of staying up")
    add(
        "--requests",
        type=_at_least(1),
        default=REQUESTS_DEFAULT,
        metavar="N",
        help="requests of the workload, or rows read from the trace (default: %(default)s)",
    )
    add("--workers", type=_at_least(1), default=4, metavar="N", help="workers (default: 4)")
    add("--ranks", type=_at_least(1), default=1, metavar="N", help="ranks per worker (default: 1)")
    add(
        "--blocks",
        type=_at_least(1),
        default=4096,
        metavar="N",
        help="cache of each rank in blocks (default: %(default)s)",
    )
    add("--block-size", type=_at_least(1), default=16, metavar="TOKENS", help="default: 16")
    add(
        "--seed",
        type=_at_least(0),
        default=1,
        metavar="N",
        help="of workload and fleet (default: 1)",
    )
    add(
        "--trace",
        type=_trace,
        metavar="FILE",
        help="replay a Mooncake-format trace (.jsonl or .jsonl.gz) instead of generating",
    )
    add(
        "--speedup",
        type=_positive,
        default=20.0,
        metavar="X",
        help="arrivals of the trace come X times faster (default: 20)",
    )
    add(
        "--lose",
        type=_fraction,
        default=0.0,
        metavar="FRACTION",
        help="withhold this share of KV event batches, to see replay repair the gaps (default: 0)",
    )
    add("--port", type=_at_least(0), default=0, help="of the service (default: any free one)")
    return parser


def _trace(text: str) -> Path:
    """A file whose first line could be a request of a trace; the rest is judged when it is read."""
    path = Path(text)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            row = json.loads(lines.readline(LINE_BYTES_MAX))
    except (OSError, EOFError) as error:
        raise argparse.ArgumentTypeError(f"cannot read {text}: {error}") from error
    except ValueError:
        row = None
    if not isinstance(row, dict) or TRACE_FIELDS - row.keys():
        fields = ", ".join(sorted(TRACE_FIELDS))
        raise argparse.ArgumentTypeError(f"line 1 of {text} is no JSON object with {fields}")
    return path


def _at_least(minimum: int) -> Callable[[str], int]:
    def integer(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{value} is below {minimum}")
        return value

    return integer


def _positive(text: str) -> float:
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 1)")
    return value


if __name__ == "__main__":
    parse_options()
