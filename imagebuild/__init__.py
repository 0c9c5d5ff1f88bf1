"""imagebuild: a reproducible builder of patched LLM-engine images with patch provenance."""

__version__ = "0.1.0"

PROJECT_URL = "https://github.com/imagebuild/imagebuild"
"""Root of every URI that the project mints (build types, predicate types, builder ids)."""

LABEL_PREFIX = "io.github.imagebuild."
"""Prefix of the labels and annotations that are ours (image-spec annotations.md: reverse DNS)."""
