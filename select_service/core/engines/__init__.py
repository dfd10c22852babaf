"""What engines say of their own load, read from the text of their metrics.

Another engine's words or another number of it enter here; what follows from them is admission's.
"""
