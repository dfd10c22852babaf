"""Who may pass: busy thresholds, the waiting queue, priority tiers."""
