"""Lists and hashes every file of one layer, its digest checked; prints what was found as JSON.

python first_read.py BLOB MEDIA_TYPE DIGEST SIZE
"""

from __future__ import annotations

import json
import sys
import time

begun = time.perf_counter()

from imagebuild.content.digest import Digest  # noqa: E402
from imagebuild.layer.tar_reader import read_layer  # noqa: E402
from imagebuild.oci.descriptor import Descriptor  # noqa: E402

imported = time.perf_counter()
path, media_type, digest, size = sys.argv[1:]
with open(path, "rb") as stream:
    facts = read_layer(stream, Descriptor(media_type, Digest.parse(digest), int(size)))
done = time.perf_counter()
hashed = sum(entry.sha256 is not None for entry in facts.entries.values())
print(
    json.dumps({"entries": len(facts.entries), "hashed": hashed, "imports": imported - begun, "read": done - imported})
)
