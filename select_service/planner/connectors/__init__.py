"""Where decisions become replicas: over HTTP, in a file, in Kubernetes, or nowhere (dry run).

A connector never decides how many, and never tries again by itself: the next tick decides anew.
"""
