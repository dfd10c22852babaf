"""What the client would rather have: the Accept header of a request.

Source of the rules: RFC 9110, 12.5.1; parameters other than `q` are ignored.
"""

WILDCARDS = ("application/*", "*/*")


def asks_for(accept: str, media_type: str, instead_of: str) -> bool:
    """Is `media_type` named, not refused, and wanted at least as much as `instead_of`?

    media_type, instead_of: lower case, "application/..."; the second is the usual answer.
    """
    weights = _weights(accept)
    wanted = weights.get(media_type, 0.0)
    ranges = (instead_of, *WILDCARDS)
    usual = next((weights[name] for name in ranges if name in weights), 0.0)
    return wanted > 0 and wanted >= usual


def _weights(accept: str) -> dict[str, float]:
    """Media range, lower case -> its weight; of one that is named twice the first."""
    weights: dict[str, float] = {}
    for item in accept.lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        weights.setdefault(name, _weight(parameters))
    return weights


def _weight(parameters: list[str]) -> float:
    """What `q` says; 1 when it is missing, 0 when it is no number from 0 to 1."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                weight = float(value)
            except ValueError:
                return 0.0
            return weight if 0 <= weight <= 1 else 0.0
    return 1.0
