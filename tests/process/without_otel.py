"""`python -m tests.process.without_otel [flags]`: the command without the extra `otel`."""

import sys

from select_service.__main__ import main

sys.modules["opentelemetry"] = None  # type: ignore[assignment]

if __name__ == "__main__":
    sys.exit(main())
