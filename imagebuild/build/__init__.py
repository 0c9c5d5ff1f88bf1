"""From a target to an image: reading the base, locking, planning, building, comparing, verifying."""
