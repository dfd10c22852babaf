"""`python -m select_service.simulator`, what scripts/demo runs: service, fleet, workload, report.

Only the order of things is decided here.  Everything but the command line is imported in `main`, so
that --help needs nothing installed.
"""

import sys

from select_service.simulator.options import parse_options


def main() -> None:
    """Entry point; the status is 0 for a clean run, 1 for a failed one, 130 when interrupted."""
    options = parse_options()
    from select_service.simulator.demo import run_demo

    sys.exit(run_demo(options))


if __name__ == "__main__":
    main()
