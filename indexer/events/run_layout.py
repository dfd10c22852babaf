"""Runs of messages as arrays: what receives them writes it, and what applies them reads it.

A run are messages that came one after the other: a buffer of bytes, and an int64 row for each.
"""

(
    N_FRAMES,
    IS_NUMBERED,  # the frame before the last is a number
    NUMBER,  # its 64 bits
    PAYLOAD,  # where the last frame begins
    END,  # and ends, with the message
    STARTS,  # where each frame begins
) = range(6)
FRAMES_MAX = 5
ROW_LENGTH = STARTS + FRAMES_MAX
NUMBER_BYTES = 8
LIVE_FRAMES = 3
"""[topic, sequence number, payload]"""

MESSAGES = "Array(int64, 2, 'C', readonly=True)"
"""In signatures: the rows of a run."""
