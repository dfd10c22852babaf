"""Comparison of policies on live traffic: a shadow policy, and switchback experiments.

Comparisons read decisions that were made, and make none.
"""
