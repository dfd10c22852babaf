"""`python -m tests.process.counting_garbage [flags]`: the command with a count of cyclic garbage.

After SIGUSR1 the log counts the objects found in cycles since the previous signal, by type.
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


def log_garbage(_number: int, _frame: FrameType | None) -> None:
    gc.collect()
    found = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
    gc.garbage.clear()
    gc.set_debug(gc.DEBUG_SAVEALL)  # counting begins with the first signal
    log.info(FOUND, extra={"fields": {"found": dict(found)}})


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, log_garbage)
    sys.exit(main())
