"""`python -m tests.process.without_names [flags]`: the command with a silent name server.

Name lookups never end; the log has a line for each lookup.
"""

import json
import socket
import sys
import threading
from typing import Any

from indexer.zmq_endpoints import is_address
from select_service.__main__ import main

LOOKED_UP = "a name is looked up"
_look_up: Any = socket.getaddrinfo


def _hang(host: str | None, *rest: Any, **how: Any) -> Any:
    if host is not None and not is_address(host):
        print(json.dumps({"message": LOOKED_UP, "host": host}), file=sys.stderr, flush=True)
        threading.Event().wait()
    return _look_up(host, *rest, **how)


if __name__ == "__main__":
    socket.getaddrinfo = _hang
    sys.exit(main())
