"""Statements, envelopes, keys, bundles, their storage and their verification (evidence.md).

Nothing is read before its signature was verified, and what was verified has a type of its own.  Importing this package
costs nothing; `cryptography` and `PyNaCl` are loaded when a key is.
"""
