"""Is the service of this container healthy?  What HEALTHCHECK of the image runs.

It is asked where its own settings say that it listens: the variables of the container, and the
flags of the process that the container began.  Over HTTPS nobody need see who issued the
certificate of one's own service; one that asks clients for a certificate is shown that of
--tls-client-cert, else its own.
"""

import http.client
import os
import ssl
import sys
from contextlib import suppress
from pathlib import Path

from select_service.command_line import UsageError
from select_service.settings.config import Config, arguments_of, load

TIMEOUT_S = 2.0
FIRST_PROCESS = Path("/proc/1/cmdline")
NAMES = ("select-service", "select_service")
"""Of the service in a command line: `select-service`, and `python -m select_service`."""
REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def flags_of(command: bytes) -> list[str]:
    """Behind the name of the service; in front of it may be who starts it.

    command: words that each end with a zero byte, as the kernel shows them
    """
    words = [os.fsdecode(word) for word in command.split(b"\0")[:-1]]
    at = [n for n, word in enumerate(words) if Path(word).name in NAMES]
    return words[at[0] + 1 :] if at else []


def connection(config: Config) -> http.client.HTTPConnection:
    """Raises OSError."""
    host, port = REACHED_AT.get(config["host"], config["host"]), config["port"]
    if config["tls_cert"] is None:
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if config["tls_client_ca"] is not None:
        whose = "tls" if config["tls_client_cert"] is None else "tls_client"
        context.load_cert_chain(config[f"{whose}_cert"], config[f"{whose}_key"])
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)


def main() -> int:
    """Exit status, as HEALTHCHECK wants it: 0 healthy, 1 not, with a line that says why."""
    command = b""
    with suppress(OSError):  # of somebody else: then the variables have to do
        command = FIRST_PROCESS.read_bytes()
    try:
        asked = connection(load(arguments_of(flags_of(command)), os.environ))
        asked.request("GET", "/health")
        status = asked.getresponse().status
    except (UsageError, OSError, http.client.HTTPException) as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    print(f"status {status}")
    return 0 if status == http.client.OK else 1


if __name__ == "__main__":
    sys.exit(main())
