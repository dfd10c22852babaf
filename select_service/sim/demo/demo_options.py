"""Command line of the demo. Standard library only, for checks before any installation."""

import argparse
import gzip
import json
import sys
from pathlib import Path
from typing import NamedTuple

from select_service.base.command_line import (
    CommandParser,
    UsageError,
    file_error_text,
    finite_number,
    positive_number,
    whole_number,
)

PROG = "scripts/demo"
NUMBER_MAX = 10**9
LINE_BYTES_MAX = 4 * 2**20
TRACE_FIELDS = {"hash_ids", "requests"}


class DemoOptions(NamedTuple):
    """Parsed command line."""

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


def parse_options(arguments: list[str] | None = None) -> DemoOptions:
    """Parse `arguments` (None means sys.argv).  Exits with status 2 for invalid values."""
    try:
        return DemoOptions(
            **vars(parser().parse_arguments(sys.argv[1:] if arguments is None else arguments))
        )
    except UsageError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        sys.exit(2)


def parser() -> CommandParser:
    """Return the parser of the command line."""
    result = CommandParser(
        PROG,
        "Start the selection service and a fleet of simulated engines, drive a workload through "
        "the HTTP API, print a report, and stay up for further requests.",
        {
            PROG: "2,000 requests on four workers, then the page stays up",
            f"{PROG} --once --requests 200": "a short run without staying up",
            f"{PROG} --workers 8 --ranks 2 --lose 0.01": "a larger fleet with lost events",
        },
        epilog="""\
Exit status: 0 if every request succeeded, no reservation is left and every
checked overlap is exact; else 1.""",
    )
    result.add_argument("--once", action="store_true", help="exit after the report")
    add, counts = result.add_value, whole_number(1, NUMBER_MAX)
    add("--requests", counts, "N", "requests of the workload, or rows read from the trace", 2000)
    add("--workers", counts, "N", "simulated workers", 4)
    add("--ranks", counts, "N", "ranks of each worker", 1)
    add("--blocks", counts, "BLOCKS", "cache size of each rank", 4096)
    add("--block-size", counts, "TOKENS", "block size", 16)
    add("--seed", whole_number(0, NUMBER_MAX), "N", "seed of workload and fleet", 1)
    add(
        "--trace",
        _trace_path,
        "FILE",
        "request trace of Mooncake, Bailian or Weka to replay instead of a generated workload",
    )
    add("--speedup", positive_number, "FACTOR", "acceleration of the arrivals of the trace", 20.0)
    add(
        "--lose",
        _fraction,
        "FRACTION",
        "share of withheld KV event batches, which replays repair",
        0.0,
    )
    port = "HTTP port of the service; 0 means any free port"
    add("--port", whole_number(0, 65535), "PORT", port, 0)
    return result


def _trace_path(text: str) -> Path:
    """Return the path of a trace if its first line is a request; the rest is checked at reading."""
    path = Path(text)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            # A bound, because a binary file may have no line ends.
            row = json.loads(lines.readline(LINE_BYTES_MAX))
    # Raised by gzip for a truncated file; not an OSError.
    except EOFError:
        raise argparse.ArgumentTypeError(f"`{text}` is cut off: it ends inside a block") from None
    except OSError as error:
        raise argparse.ArgumentTypeError(file_error_text(text, error)) from None
    except ValueError:
        row = None
    if not isinstance(row, dict) or not TRACE_FIELDS & row.keys():
        fields = " or ".join(sorted(TRACE_FIELDS))
        raise argparse.ArgumentTypeError(f"line 1 of {text} is not a JSON object with {fields}")
    return path


def _fraction(text: str) -> float:
    """Return a fraction from 0 to below 1.  Raises ValueError."""
    value = finite_number(0, 1)(text)
    if value == 1.0:
        raise ValueError("a number from 0 to below 1")
    return value


if __name__ == "__main__":
    parse_options()
