"""Where an image's own installer would put a wheel: read off the interpreter's folders, nothing run."""

from __future__ import annotations

import re

from imagebuild.errors import RefusedError
from imagebuild.layer.entry import Found, Kind, View
from imagebuild.overlay.contents import join, real_path
from imagebuild.overlay.interpreters import Interpreter
from imagebuild.overlay.roots import PythonLayout
from imagebuild.overlay.wheel_install import Scheme

_SITE = re.compile(r"(?:(?P<prefix>.*)/)?lib(?P<bits>64)?/python3\.\d+/(?:site|dist)-packages\Z")


def wheel_interpreter(layout: PythonLayout) -> Interpreter:
    """The interpreter that wheels are installed for: the one that `python3` of PATH starts, else the only one.

    Raises RefusedError `overlay.wheel-interpreter` where nothing decides.
    """
    if layout.default is not None:
        return layout.default
    known = [path.interpreter for path in layout.paths]
    if len(known) == 1:
        return known[0]
    raise RefusedError(
        "overlay.wheel-interpreter",
        f"which interpreter of the image a wheel is for cannot be told: {layout.default_reason}",
        expected="one interpreter, or one that `python3` of PATH starts",
        found="; ".join(item.label for item in known) or "none",
        hint="take a base whose PATH leads to its interpreter",
    )


def install_scheme(view: View, interpreter: Interpreter) -> Scheme:
    """The interpreter's install scheme (sysconfig): Debian's and Fedora's own interpreters install below /usr/local, a
    virtual environment below itself.

    Scripts name the program with the exact version where the image has it, since `python3` may come to mean another.
    """
    own = interpreter.sites[: interpreter.own_sites or None]
    first = _SITE.match(own[0])
    prefix = interpreter.prefix if first is None else first["prefix"] or ""
    inside = [site for site in own if (match := _SITE.match(site)) is not None and (match["prefix"] or "") == prefix]
    wide = [site for site in inside if (match := _SITE.match(site)) is not None and match["bits"]]
    narrow = [site for site in inside if site not in wide]
    purelib = (narrow or list(own))[0]
    platlib = (wide or [purelib])[0]
    include = join(prefix, f"include/python{interpreter.version}")
    if isinstance(view.lookup(join(interpreter.prefix, "pyvenv.cfg")), Found):
        include = join(prefix, f"include/site/python{interpreter.version}")
    return Scheme(purelib, platlib, join(prefix, "bin"), include, prefix, _program(view, interpreter))


def _program(view: View, interpreter: Interpreter) -> str:
    folder = join(interpreter.prefix, "bin")
    names = (f"python{interpreter.version}", "python3", "python")
    for name in names:
        where = real_path(view, join(folder, name))
        found = None if where is None else view.lookup(where)
        if isinstance(found, Found) and found.entry.kind in (Kind.FILE, Kind.HARDLINK):
            return f"/{folder}/{name}"
    return f"/{folder}/{names[0]}"
