"""Records and explanations of decisions, comparisons of policies, accuracy of predictions."""
