"""Health of ranks: canary checks, circuit breakers, reported failures, and their consequences.

health_kinds, health_rules, health_effects: vocabulary and settings
rank_state: record, breaker and baseline of a rank; the state machine of a partition's ranks
checks: canary prompts, their schedule, attempts and results
answers: correctness of responses
outcome_trust: client reports
health_monitor: facade over all of these
capacity_estimate, degradation: load that the remaining ranks can carry
migration: new ranks for the reservations of unfit ranks
fleet_health: connection with the worker catalog and the rank tables

Time is an argument everywhere, in seconds of a monotonic clock.
"""
