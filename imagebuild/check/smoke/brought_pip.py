"""pip as it is installed here, to be sent along: images that were made with other installers often have none."""

from __future__ import annotations

import importlib.util
import io
import zipfile
from functools import cache
from pathlib import Path

STAMP = (1980, 1, 1, 0, 0, 0)


@cache
def pip_archive() -> bytes | None:
    """The package `pip` as an archive that Python runs (`python pip.zip/pip check`); None where there is none here."""
    spec = importlib.util.find_spec("pip")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix != ".exe" and "__pycache__" not in path.parts:
                archive.writestr(zipfile.ZipInfo(f"pip/{path.relative_to(folder)}", STAMP), path.read_bytes())
    return found.getvalue()
