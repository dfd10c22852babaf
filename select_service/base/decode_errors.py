"""Exceptions of msgspec for invalid JSON or MessagePack from others; more than DecodeError."""

import msgspec

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""UnicodeDecodeError: text that is not UTF-8.

RecursionError: deep nesting, even in skipped fields.
"""
