"""Policies compared while a fleet serves: what another would have chosen, and what changes when a
scope is switched between two.
"""
