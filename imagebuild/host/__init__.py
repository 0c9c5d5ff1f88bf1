"""The doors to the machine: process, clock, environment.  Nothing else of the package asks it anything."""
