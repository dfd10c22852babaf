"""Judgement of canary responses: reference answers, votes and cross-checks."""
