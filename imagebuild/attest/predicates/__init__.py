"""What is said of an image: one module a predicate, each with its type and what makes it."""
