"""Content negotiation by the `Accept` header of a request.

Source of the rules: RFC 9110, 12.5.1; parameters other than `q` are ignored.
"""

WILDCARDS = ("application/*", "*/*")


def prefers_media_type(accept: str, media_type: str, default_type: str) -> bool:
    """Return whether the client prefers `media_type`: named, accepted, and weighted no less than
    the default.

    media_type, default_type: lower case, "application/..."
    """
    weights = _parse_weights(accept)
    wanted = weights.get(media_type, 0.0)
    ranges = (default_type, *WILDCARDS)
    usual = next((weights[name] for name in ranges if name in weights), 0.0)
    # Equal weights go to the named type: a client that lists it at all can read it.
    return wanted > 0 and wanted >= usual


def _parse_weights(accept: str) -> dict[str, float]:
    """Return the weight of each media range, in lower case; the first of duplicates counts."""
    weights: dict[str, float] = {}
    for item in accept.lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        weights.setdefault(name, _parse_weight(parameters))
    return weights


def _parse_weight(parameters: list[str]) -> float:
    """Return the value of `q`; 1 when missing, 0 when not a number from 0 to 1."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                weight = float(value)
            except ValueError:
                return 0.0
            return weight if 0 <= weight <= 1 else 0.0
    return 1.0
