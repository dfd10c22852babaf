"""Health check of the container image (HEALTHCHECK).

The check uses the address from the settings of the service: the variables of the container and the
flags of its first process.  Over HTTPS, the certificate is not verified, as it is the service's
own.  If the service requires a client certificate, the check sends that of --tls-client-cert, else
the server's own.
"""

# Not `HttpSession`: importing asyncio and the parser would add a third to the time of every check.
import http.client
import os
import ssl
import sys
from contextlib import suppress
from pathlib import Path

from select_service.base.command_line import UsageError
from select_service.config.settings_loader import Config, parse_config

TIMEOUT_S = 2.0
FIRST_PROCESS = Path("/proc/1/cmdline")
NAMES = ("select-service", "select_service")
"""Names of the service in a command line: `select-service`, and `python -m select_service`."""
REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def service_arguments(command: bytes) -> list[str]:
    """Return the arguments after the name of the service; a launcher may precede the name.

    command: zero-terminated words, as in /proc/PID/cmdline
    """
    words = [os.fsdecode(word) for word in command.split(b"\0")[:-1]]
    at = [n for n, word in enumerate(words) if Path(word).name in NAMES]
    return words[at[0] + 1 :] if at else []


def open_health_connection(config: Config) -> http.client.HTTPConnection:
    """Return a connection to the service.  Raises OSError."""
    host, port = REACHED_AT.get(config["host"], config["host"]), config["port"]
    if config["tls_cert"] is None:
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    context = ssl.create_default_context()
    # The container checks itself over loopback, where the certificate's name does not match.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if config["tls_client_ca"] is not None:
        whose = "tls" if config["tls_client_cert"] is None else "tls_client"
        context.load_cert_chain(config[f"{whose}_cert"], config[f"{whose}_key"])
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)


def main() -> int:
    """Run the check; return 0 if healthy, else 1 after printing the reason."""
    command = b""
    with suppress(OSError):  # not readable: only the variables are used
        command = FIRST_PROCESS.read_bytes()
    try:
        config = parse_config(service_arguments(command), os.environ)
        asked = open_health_connection(config)
        asked.request("GET", "/health")
        status = asked.getresponse().status
    except (UsageError, OSError, http.client.HTTPException) as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    print(f"status {status}")
    return 0 if status == http.client.OK else 1


if __name__ == "__main__":
    sys.exit(main())
