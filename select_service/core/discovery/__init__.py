"""Which workers there should be, by sources that say so, and what is to be done about it.

Pure: sources are read in `edge/discovery`, which also carries out what is decided here.
"""
