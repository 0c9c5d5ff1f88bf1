"""Changes to a base: what people write down, how it is applied without running anything, and what it touches of Python."""
