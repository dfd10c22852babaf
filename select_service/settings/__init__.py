"""Command line, environment and files to one frozen configuration, judged before anything is built.

A value that two deployments would set differently enters here, with its variable and its help; the
parts of the service are given values, never the configuration.
"""
