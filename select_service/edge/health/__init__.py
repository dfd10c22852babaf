"""Canaries: small requests to every rank, again and again, and what came of them.

requests, answers: the forms in which engines are asked and answer;  results: what came, in the
words of health;  targets, forms: where a rank is asked, and in which form;  lateness: of our own
event loop;  canaries: all of it

Who is asked when, and what a result means, is decided in `core.health`.
"""
