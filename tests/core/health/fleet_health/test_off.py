"""Test that disabled health checks import nothing."""

import subprocess
import sys

from tests.builders.polling import PATIENCE_S

SCRIPT = """
import sys
from tests.builders.in_process import Api

with Api() as api:
    assert api.get("/workers").status == 200
    assert "health_" not in api.get("/metrics").body
    rooms = ("core.health", "core.fitness", "edge.health")
    print([name for name in sys.modules if name.removeprefix("select_service.").startswith(rooms)])
"""


def test_disabled_health_checks_are_not_imported():
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (run.stdout, run.stderr) == ("[]\n", "")
