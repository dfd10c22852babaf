"""Fast path: compiled code from the bytes of a common request to the bytes of its response.

Only requests with the same meaning as on the ordinary path are handled.  At the first unusual
detail the same bytes go to the ordinary path, before anything was written; the fast path never
describes an error.
"""
