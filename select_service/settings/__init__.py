"""Command line, environment and policy file to one frozen configuration, judged before all else.

A value that two deployments would set differently enters here, with its variable and its help; the
parts of the service are given values, never the configuration.  Opens one file: the policies.
"""
