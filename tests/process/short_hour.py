"""`python -m tests.process.short_hour [flags]`: the command with hours of 4 seconds for traffic."""

import sys

from select_service.__main__ import main
from select_service.core.traffic import time_slots

time_slots.WINDOW_S_MAX = 4
time_slots.SLOTS_MAX = 200

if __name__ == "__main__":
    sys.exit(main())
