"""Is the service of this image healthy?  What HEALTHCHECK runs, with variables of the container.

It asks over loopback, over HTTPS where SELECT_SERVICE_TLS_CERT says that the service speaks it: of
its own service nobody need see who issued the certificate.  A service that asks clients for a
certificate is shown SELECT_SERVICE_TLS_CLIENT_CERT, else the service's own.
"""

import http.client
import os
import ssl
import sys
from collections.abc import Mapping

TIMEOUT_S = 2.0
_PREFIX = "SELECT_SERVICE_"


def connection(environment: Mapping[str, str]) -> http.client.HTTPConnection:
    """Raises KeyError, ValueError, OSError."""
    port = int(environment[f"{_PREFIX}PORT"])
    if not environment.get(f"{_PREFIX}TLS_CERT"):
        return http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if environment.get(f"{_PREFIX}TLS_CLIENT_CA"):
        whose = "TLS_CLIENT" if environment.get(f"{_PREFIX}TLS_CLIENT_CERT") else "TLS"
        pair = (environment[f"{_PREFIX}{whose}_{part}"] for part in ("CERT", "KEY"))
        context.load_cert_chain(*pair)
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=context)


def main() -> int:
    """Exit status, as HEALTHCHECK wants it: 0 healthy, 1 not, with a line that says why."""
    try:
        asked = connection(os.environ)
        asked.request("GET", "/health")
        status = asked.getresponse().status
    except (KeyError, ValueError, OSError, http.client.HTTPException) as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    print(f"status {status}")
    return 0 if status == http.client.OK else 1


if __name__ == "__main__":
    sys.exit(main())
