"""Checks of images and engines: verdicts, GSM8K runs and their comparison (docs/how-to/accuracy.md)."""
