"""A release: every step from a current lock to a signed, published image, in order and resumable.

Above everything else that makes something, below the command line.
"""
