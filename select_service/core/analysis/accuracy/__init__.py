"""Accuracy of predictions about ranks, measured on decisions after the fact.

prediction_accuracy: results of a rank
prediction_checks: sampled reservations followed to their end
Decisions never use these results.
"""
