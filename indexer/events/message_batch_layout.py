"""Array layout of runs of messages: written by the receiver, read by the applier.

A run is a sequence of messages: a buffer of bytes, and an int64 row per message.
"""

(
    N_FRAMES,
    IS_NUMBERED,  # 1 if the frame before the last is a number
    NUMBER,  # 64 bits of the number
    PAYLOAD,  # begin of the last frame
    END,  # end of the message
    STARTS,  # begin of each frame
) = range(6)
FRAMES_MAX = 5
ROW_LENGTH = STARTS + FRAMES_MAX
NUMBER_BYTES = 8
LIVE_FRAMES = 3
"""[topic, sequence number, payload]"""

MESSAGES = "Array(int64, 2, 'C', readonly=True)"
"""Signature text of the rows of a run."""
