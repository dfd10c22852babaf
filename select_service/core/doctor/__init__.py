"""What is wrong with a service and its engines: facts -> findings, each with its fix.

`codes` is the one table of what can be found, `facts` what was looked at; `judging_workers` and
`judging_service` make findings of facts.  Nothing here asks anybody: `edge/doctor` does.
"""
