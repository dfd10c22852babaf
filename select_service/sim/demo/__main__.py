"""Entry point of scripts/demo: service, fleet, workload, report.

Only the order of the steps is decided here. Everything but the command line is imported in `main`,
so `--help` works without installed packages.
"""

import sys

from select_service.sim.demo.demo_options import parse_options


def main() -> None:
    """Run the demo and exit: status 0 for a clean run, 1 for a failed run, 130 for an interrupted
    run.
    """
    options = parse_options()
    from select_service.sim.demo.demo_run import run_demo

    sys.exit(run_demo(options))


if __name__ == "__main__":
    main()
