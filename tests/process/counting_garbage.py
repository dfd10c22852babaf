"""`python -m tests.process.counting_garbage [flags]`: the command, and what its collector finds.

After SIGUSR1 the log says what was in cycles since the last time, by type.
"""

import gc
import logging
import signal
import sys
from collections import Counter
from types import FrameType

from select_service.__main__ import main

log = logging.getLogger("select_service.garbage")

FOUND = "garbage"


def tell(_number: int, _frame: FrameType | None) -> None:
    gc.collect()
    found = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
    gc.garbage.clear()
    gc.set_debug(gc.DEBUG_SAVEALL)  # from the first time on
    log.info(FOUND, extra={"fields": {"found": dict(found)}})


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    sys.exit(main())
