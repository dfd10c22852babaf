"""Entry points of the installed commands, with advice if packages of an extra are missing.

`python -m select_service` and `python -m select_service.planner` run the same without the advice.
"""

import sys
from importlib import import_module

from select_service.base.extras import installation_advice

USAGE_ERROR = 2


def run_select_service() -> int:
    """Run the command `select-service` and return its exit status."""
    return _run_module("select-service", "select_service.__main__")


def run_select_planner() -> int:
    """Run the command `select-planner` and return its exit status."""
    return _run_module("select-planner", "select_service.planner.__main__")


def _run_module(command: str, module: str) -> int:
    try:
        # Imported here and not at the top: the packages of the extra may be missing.
        status: int = import_module(module).main()
    except ModuleNotFoundError as error:
        print(f"{command}: error: {installation_advice(error, 'server')}", file=sys.stderr)
        return USAGE_ERROR
    return status
