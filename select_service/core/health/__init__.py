"""Which ranks are fit to serve, and what is done about those that are not.

kinds, rules, effects: words;  health_record with baseline, breaker: what is known of one rank;
roster, partition_health: the state machine of the ranks of one partition
schedule, spread: who is due;  canary_prompts: for what;  checking, delivering: what became of it
judging, agreement, reference_book, pooling, questions: is an answer right?
common_mode: is it the ranks at all?  outcomes: what callers report;  checked: who is known
monitor: all of it;  following: what effects mean for the schedule
capacity, degradation: what the ranks that are left can carry
migration with move_cost, moves: where the reservations of a rank go;  learnt: rates and means

Time is an argument everywhere, in seconds of a monotonic clock.
"""
