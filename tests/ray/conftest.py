"""Collection of tests: where Ray is not installed only the smoke test is collected and skipped."""

from importlib.util import find_spec
from pathlib import Path

SMOKE = "test_smoke.py"
tests = (path.name for path in Path(__file__).parent.glob("test_*.py"))
collect_ignore = [] if find_spec("ray") else [name for name in tests if name != SMOKE]
