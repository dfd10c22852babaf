"""Where Ray is not installed only the smoke test is collected, which says so."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("ray") else ["test_[!s]*.py"]
