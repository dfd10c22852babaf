"""Looks at the service and its engines, when somebody asks for it, and asks the core what is wrong.

`examination` is the whole of it: bounded in workers, in time and in what runs at once.  `reaching`,
`replays` and `probing` look at one engine each in their way, `workers` joins them; `machine` looks
at the process and its host.  Imported when a first examination is asked for.
"""
