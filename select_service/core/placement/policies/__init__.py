"""Placement policies: least work, and the rules of the reference (Dynamo)."""
