"""Who may call what: keys, their roles and tenants, and what each of them may use.

Everything here is given what it judges, but for `keys_file`, which reads the file of keys, and
`command`, which makes a new one.
"""
