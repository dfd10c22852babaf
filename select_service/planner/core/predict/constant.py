"""It will be as it was."""


class Constant:
    """The last point."""

    def __init__(self) -> None:
        self._last: float | None = None

    def push(self, value: float) -> None:
        self._last = value

    def skip(self) -> None:
        """Nothing moves."""

    def ahead(self, steps: float) -> float | None:
        """`steps` does not matter."""
        return self._last
