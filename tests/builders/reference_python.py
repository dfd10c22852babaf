"""The reference next to the product.

Such tests run only if SELECT_SERVICE_REFERENCE_PYTHON names a Python that has ai-dynamo-runtime.
"""

import os

import pytest

from scripts.bench.suite.machine_facts import installed_version
from scripts.bench.suite.reference_environment import NAMES_SELECTIONS, PACKAGE

PYTHON = os.environ.get("SELECT_SERVICE_REFERENCE_PYTHON")
VERSION = installed_version(PYTHON, PACKAGE) if PYTHON else ""
HAS_SESSIONS = tuple(int(part) for part in VERSION.split(".")[:2] if part) >= NAMES_SELECTIONS
"""Whether the reference has sessions, which came together with selections as booking names."""
NEEDS_REFERENCE = [
    pytest.mark.process,
    pytest.mark.reference,
    pytest.mark.skipif(not PYTHON, reason="SELECT_SERVICE_REFERENCE_PYTHON is not set"),
]
