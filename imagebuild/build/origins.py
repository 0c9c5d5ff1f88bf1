"""The first words of an item's origin (target.lock_types.LayerItem) in the artefacts layer."""

from __future__ import annotations

WHEEL = "wheel:"
REMOVED = "removed:"
BROUGHT = ("blob:", "stage:")
"""Items that a series brings to single paths."""
