"""A fake API server: the part of Kubernetes that scaling touches, over real HTTP(S).

`store` keeps objects with versions, conflicts and a history; `controller` moves pods in simulated
time; `server` answers requests, watches included, and fails on demand.
"""
