"""Verbs that are refused, in machines that try whatever comes."""


def is_refused(error, verb, *arguments):
    """The verb raises this."""
    try:
        verb(*arguments)
    except error:
        return
    raise AssertionError(f"{verb} was not refused with {error}")
