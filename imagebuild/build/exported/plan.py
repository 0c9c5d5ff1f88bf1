"""What one exported script knows of its target: the exporter writes other values in place of these.

`PLATFORMS` by platform: `roots` as [name, import name or "", folder, site folder], `steps` in the order in which they are
written, `bytecode` as [path, path of its source], `wheels`, `environment` as [name, value].  A step has `path`, `kind` (file,
symlink, directory, whiteout), `before` and `after` (digests, null for nothing), `mode`, `uid`, `gid`, `mtime`, `xattrs`,
`link`, and for a file `body`: ["patch", key] and ["whole", key] of BODIES, or [number of the wheel, member].
"""

from __future__ import annotations

from typing import Any

TARGET = ""
CONTENT_ID = ""
BASE = ""
PLATFORMS: dict[str, Any] = {}
BODIES: dict[str, bytes] = {}
