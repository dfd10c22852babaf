"""`python -m tests.process.without_ticks [flags]`: the command without checks once a second.

An answer to a waiting request then follows from an event alone, however slow the machine is.
"""

import sys

from select_service.__main__ import main
from select_service.adapters import service_tasks
from select_service.core import selector

selector.SECOND_S = service_tasks.SECOND_S = 86_400.0

if __name__ == "__main__":
    sys.exit(main())
