"""Generators of the reference pages that follow from the code."""
