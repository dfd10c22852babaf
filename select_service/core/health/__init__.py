"""Which ranks are fit to serve, and what is done about those that are not.

kinds, rules, effects: words;  health_record with baseline, breaker: what is known of one rank;
partition_health: the state machine of the ranks of one partition
judging, agreement, reference_book, questions: is an answer right?
schedule, running: which check is due, and what became of it;  common_mode: is it the ranks at all?
outcomes: what callers report;  monitor: all of it
capacity, degradation: what the ranks that are left can carry
migration with move_cost, moves: where the reservations of a rank go;  learnt: rates and means

Time is an argument everywhere, in seconds of a monotonic clock.
"""
