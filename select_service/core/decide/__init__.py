"""From a prompt to a rank: hashes, candidates, terms, costs, choice.

Only reads table, load and index.  A further policy enters as a record and a file of kernels; what
is booked does not.
"""
