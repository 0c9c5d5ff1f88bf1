"""Values and bytes: digests, verified streams, canonical JSON, atomic writes, the content store."""
