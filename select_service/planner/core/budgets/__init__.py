"""GPU budgets: of a role, of a deployment and of a cluster."""
