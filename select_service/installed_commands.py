"""The installed commands: they say which extra to install where its packages are missing.

`python -m select_service` and `python -m select_service.planner` are the same without that.
"""

import sys
from importlib import import_module

from select_service.extras import advice_to_install

USAGE_ERROR = 2


def select_service() -> int:
    """Run the command `select-service` and return its exit status."""
    return _run("select-service", "select_service.__main__")


def select_planner() -> int:
    """Run the command `select-planner` and return its exit status."""
    return _run("select-planner", "select_service.planner.__main__")


def _run(command: str, module: str) -> int:
    try:
        status: int = import_module(module).main()
    except ModuleNotFoundError as error:
        print(f"{command}: error: {advice_to_install(error, 'server')}", file=sys.stderr)
        return USAGE_ERROR
    return status
