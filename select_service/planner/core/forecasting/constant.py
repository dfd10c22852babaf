"""Predictor that repeats the last point."""


class LastPoint:
    """Model of a constant series."""

    def __init__(self) -> None:
        self._last: float | None = None

    def push(self, value: float) -> None:
        """Store the point."""
        self._last = value

    def skip(self) -> None:
        """Do nothing: a gap changes nothing."""

    def ahead(self, steps: float) -> float | None:
        """Return the last point, whatever `steps`."""
        return self._last
