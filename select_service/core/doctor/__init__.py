"""Doctor: findings about a service and its engines from facts, each with a fix.

`finding_codes` is the table of possible findings, `facts` the examined values; `worker_findings`
and `service_findings` derive findings from facts. Nothing here does I/O: `adapters.doctor` collects
the facts.
"""
