"""Policies compared while a fleet serves: what another would have chosen, and what changes when a
scope is switched between two.

What tells policies apart on live traffic enters here; it reads what was decided, and
decides nothing.
"""
