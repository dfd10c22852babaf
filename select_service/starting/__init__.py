"""What a process takes and does before it serves: signals, address, lock, machine code.

Only what cannot wait until the service is built enters; it imports no kernel, so that a wrong
setting has its verdict at once.
"""
