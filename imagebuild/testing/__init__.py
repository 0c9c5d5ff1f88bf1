"""Shipped makers of realistic bases and registries, for the demo, the tests and people's own tests."""
