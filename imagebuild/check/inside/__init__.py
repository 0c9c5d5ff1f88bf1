"""Programs that run inside the checked image, by the image's own Python (3.8 or newer) and its standard library alone.

They are sent as inputs of a job and import nothing of this package, nor anything here imports them: `source` gives their
text.  `launch` is started first; it reads what proves that it runs in the image, and then runs one of the others; `serve_arm`
does so for a server that is spoken to from outside.
"""

from __future__ import annotations

from pathlib import Path

PROGRAMS = ("launch", "modules", "importing", "switch", "devices", "kernel", "engine", "overlay_check", "serve_arm")


def source(name: str) -> bytes:
    """The text of one program."""
    if name not in PROGRAMS:
        raise ValueError(f"no program {name}")
    return Path(__file__).with_name(f"{name}.py").read_bytes()
