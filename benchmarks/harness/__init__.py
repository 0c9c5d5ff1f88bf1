"""Parts of benchmarks/overlay_build.py."""
