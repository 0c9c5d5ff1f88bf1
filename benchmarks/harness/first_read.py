"""Lists and hashes every file of one layer, its digest checked; prints what was found as JSON.

python first_read.py BLOB MEDIA_TYPE DIGEST SIZE
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

begun = time.perf_counter()

from imagebuild.content.digest import Digest  # noqa: E402
from imagebuild.layer.tar_reader import read_layer  # noqa: E402
from imagebuild.oci.descriptor import Descriptor  # noqa: E402

imported = time.perf_counter()
path, media_type, digest, size = sys.argv[1:]
with open(path, "rb") as stream:
    facts = read_layer(stream, Descriptor(media_type, Digest.parse(digest), int(size)))
done = time.perf_counter()
# What getrusage tells begins with the size of the process that forked this one.
(peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
document = {
    "entries": len(facts.entries),
    "hashed": sum(entry.sha256 is not None for entry in facts.entries.values()),
    "imports": imported - begun,
    "read": done - imported,
    "peak_memory_bytes": int(peak.split()[1]) * 1024,
}
print(json.dumps(document))
