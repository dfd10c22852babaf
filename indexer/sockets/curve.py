"""EDGE: CURVE on a socket: encrypted, and both sides know whom they talk to.

The side that connects must know the public key of the other side beforehand.  The side that binds
asks ZAP about the key of whoever comes; without a ZAP handler libzmq lets everybody in whose own
key it has never seen, so whoever binds sees to one first.
"""

from typing import Any, NamedTuple

import zmq

from indexer.curve_keys import curve_key_error


class CurvePair(NamedTuple):
    """Of one process, in Z85."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"CurvePair(public={self.public!r})"


class CurveServer(NamedTuple):
    """Whom a connecting socket talks to, and as whom."""

    public: bytes
    own: CurvePair


def new_pair() -> CurvePair:
    return CurvePair(*zmq.curve_keypair())


def pair_of(secret: str) -> CurvePair:
    """Raises ValueError, which does not repeat the secret."""
    fault = curve_key_error(secret)
    if fault is not None:
        raise ValueError(fault)
    return CurvePair(zmq.curve_public(secret.encode()), secret.encode())


def connecting_options(server: CurveServer | None) -> dict[int, Any]:
    """None: plain."""
    if server is None:
        return {}
    return {
        zmq.CURVE_SERVERKEY: server.public,
        zmq.CURVE_PUBLICKEY: server.own.public,
        zmq.CURVE_SECRETKEY: server.own.secret,
    }


def binding_options(own: CurvePair, zap_domain: bytes) -> dict[int, Any]:
    """zap_domain: never empty, so that nobody is let in whom ZAP was not asked about"""
    assert zap_domain
    return {
        zmq.CURVE_SERVER: 1,
        zmq.CURVE_SECRETKEY: own.secret,
        zmq.ZAP_DOMAIN: zap_domain,
    }
