"""Checks on a Slurm cluster: one job array for many tasks, its script, its folder on shared disk, and what became of it."""
