"""Data collection for the doctor, on request; the core derives the findings.

`examination` runs the whole, bounded in workers, time and concurrency.  `reachability`,
`replay_check` and `prompt_probe` each check one aspect of an engine, `worker_examiner` combines
them, and `machine_facts` inspects the process and its host.  The package is imported with the first
examination.
"""
