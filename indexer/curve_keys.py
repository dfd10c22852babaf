"""Public and secret keys of CURVE as users write them: 32 bytes in Z85, 40 characters.

Text only.  Source: https://rfc.zeromq.org/spec/32 (Z85); libzmq refuses what is not of this form.
"""

KEY_CHARS = 40
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
_GROUP = 5
"""Digits of four bytes."""


def curve_key_error(text: str) -> str | None:
    """What is wrong with a key; None when it is one.  It is not repeated: it may be secret."""
    if len(text) != KEY_CHARS:
        return f"a CURVE key is {KEY_CHARS} characters of Z85, this has {len(text)}"
    groups = (text[at : at + _GROUP] for at in range(0, KEY_CHARS, _GROUP))
    return None if all(map(_is_group, groups)) else "it is not Z85, as CURVE keys are written"


def _is_group(digits: str) -> bool:
    value = 0
    for digit in digits:
        if digit not in _VALUES:
            return False
        value = value * len(_DIGITS) + _VALUES[digit]
    return value < 2**32
