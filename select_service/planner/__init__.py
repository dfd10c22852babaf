"""How many replicas a deployment needs: an autoscaler beside the selector, in a process of its own.

`core` decides (pure: the time is an argument), `edge` observes and serves, `connectors` scale,
`report` shows, `replay` decides again in simulated time.
"""
