"""What an autoscaler is told of traffic: counts in slots of a second, over the last hour.

`counted` reads what kernels and the gate count anyway, `slots` keeps differences of it, `window`
adds them up, `rank_loads` shows the ranks, `observing` is the root.  Nobody who decides or books
calls anything here, but to say why a request got no rank.
"""
