"""Command `select-service replay`: the requests of a decision log under other policies.

policy_replay_command, decision_log_reader, logged_workload   logs as a workload
replay_report                                                 figures and their presentation

Engines, virtual time and routers come from `select_service.sim.engine`.
"""
