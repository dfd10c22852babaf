"""Degradation: remaining capacity per model, and load shedding while it is below the promise.

capacity_watch: ratio and level of each model, once a second and after state changes; sets the
    shedding rules of the admission gate
capacity_probation: probation of a capacity estimate while no request is admitted to update it
"""
