"""EDGE: CURVE on a socket: encryption, with authentication of both sides.

The connecting side must know the public key of the other side beforehand.  The binding side checks
client keys with ZAP; without a ZAP handler libzmq admits every client, with any key, so a binding
process must start a handler first.
"""

from typing import Any, NamedTuple

import zmq

from indexer.curve_keys import curve_key_error


class CurveKeyPair(NamedTuple):
    """Key pair of a process, in Z85."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"CurvePair(public={self.public!r})"


class CurveServerKeys(NamedTuple):
    """Keys of a connection: the server's public key and the own pair."""

    public: bytes
    own: CurveKeyPair


def new_key_pair() -> CurveKeyPair:
    return CurveKeyPair(*zmq.curve_keypair())


def key_pair_of(secret: str) -> CurveKeyPair:
    """Return the pair of a secret key.  Raises ValueError with a text that omits the secret."""
    fault = curve_key_error(secret)
    if fault is not None:
        raise ValueError(fault)
    return CurveKeyPair(zmq.curve_public(secret.encode()), secret.encode())


def connecting_options(server: CurveServerKeys | None) -> dict[int, Any]:
    """Return the options of a connecting socket; none for an unencrypted connection (None)."""
    if server is None:
        return {}
    return {
        zmq.CURVE_SERVERKEY: server.public,
        zmq.CURVE_PUBLICKEY: server.own.public,
        zmq.CURVE_SECRETKEY: server.own.secret,
    }


def binding_options(own: CurveKeyPair, zap_domain: bytes) -> dict[int, Any]:
    """Return the options of a binding socket.

    zap_domain: never empty, since libzmq skips ZAP for an empty domain
    """
    assert zap_domain
    return {
        zmq.CURVE_SERVER: 1,
        zmq.CURVE_SECRETKEY: own.secret,
        zmq.ZAP_DOMAIN: zap_domain,
    }
