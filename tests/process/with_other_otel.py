"""`python -m tests.process.with_other_otel [flags]`: the command beside OpenTelemetry packages.

The versions of these packages do not fit each other, as another package may have brought them.
"""

import sys

from select_service.__main__ import main

sys.modules["opentelemetry.sdk.resources"] = None  # type: ignore[assignment]

if __name__ == "__main__":
    sys.exit(main())
