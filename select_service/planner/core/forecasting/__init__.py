"""Predictors of a series, and the forecast of a deployment's traffic.

A series is a predictor with the rules that all share (valid points, minimum number of points,
bounds); the models inside process numbers only. The traffic forecast joins requests and lengths.
"""
