"""Refusals of verbs, for state machines that try arbitrary calls."""


def is_refused(error, verb, *arguments):
    """Check that the verb raises this error."""
    try:
        verb(*arguments)
    except error:
        return
    raise AssertionError(f"{verb} was not refused with {error}")
