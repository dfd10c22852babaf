"""Health service: connection of the health monitor with the fleet.

health_service: between worker catalog, rank tables and the monitor of `core.health`
health_listener: interface of listeners that carry out what the monitor requests
outcome_reports: outcomes reported by clients, and whether to trust them
check_times: durations of checks
"""
