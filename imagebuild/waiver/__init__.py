"""Waivers: the file that people write."""
