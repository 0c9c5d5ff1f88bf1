"""Layers: reading and writing tar streams, whiteouts, the merged view, compression (image-spec layer.md)."""
