"""Which files there are.  All in PEM."""

from pathlib import Path
from typing import NamedTuple


class Pair(NamedTuple):
    """certificate: of this process, with those between it and the CA behind it;  key: its own"""

    certificate: Path
    key: Path


class ServerFiles(NamedTuple):
    """client_ca: whoever connects must show a certificate that it has issued"""

    pair: Pair
    client_ca: Path | None = None

    def paths(self) -> list[Path]:
        return [*self.pair, *([] if self.client_ca is None else [self.client_ca])]


class ClientFiles(NamedTuple):
    """ca: believed besides those whom the system trusts;  pair: for servers that ask for one"""

    ca: Path | None = None
    pair: Pair | None = None

    def paths(self) -> list[Path]:
        return [*([] if self.ca is None else [self.ca]), *(self.pair or ())]
