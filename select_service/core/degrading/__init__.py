"""What ranks that are left can carry, and what is given up while that is less than was promised.

capacity_watch: once a second, and after changes of states, the ratio and the level of each model;
brakes of the gate follow if they are to
trial:          when an estimate does not count, because nothing is let through to learn from
"""
