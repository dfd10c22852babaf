"""What will be asked for: predictors of one series, and the forecast of a deployment's traffic.

A `Series` is one predictor with the rules that all share (what is a point, how few are too few,
bounds); the models beside it know numbers only. `forecast` joins requests and lengths.
"""
