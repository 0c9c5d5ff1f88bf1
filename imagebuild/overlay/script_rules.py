"""What the commands of a patch script do to files, as far as an overlay can say it, and what to write instead of the
rest."""

from __future__ import annotations

import re
from collections.abc import Mapping

HARMLESS = frozenset(
    (":", "[", "[[", "]", "awk", "basename", "break", "cat", "cd", "cmp", "command", "continue", "cut", "date",
     "declare", "diff", "dirname", "echo", "egrep", "env", "exit", "export", "expr", "false", "fgrep", "file",
     "getopts", "grep", "head", "hostname", "id", "let", "local", "ls", "md5sum", "mktemp", "nproc", "pgrep",
     "popd", "printf", "ps", "pushd", "pwd", "read", "readlink", "readonly", "realpath", "return", "seq", "set",
     "sha256sum", "shift", "shopt", "sleep", "sort", "stat", "tail", "test", "time", "tr", "trap", "true",
     "type", "ulimit", "umask", "unset", "uname", "uniq", "wait", "wc", "which", "whoami", "xxd", "nvidia-smi",
     "rocm-smi", "rocminfo")
)  # fmt: skip
"""Commands that change no file by themselves (a redirection is looked at on its own)."""

_WHEEL = "bring the distribution as a wheel: imagebuild overlay pin NAME DIST==VERSION"
_DIFF = "fetch it once, look at it, and import it: imagebuild overlay import NAME --target TARGET --from-diff FILE"
_STAGE = "build it in a stage (`stage` in overlay.yaml), or bring the result as a `blob`"
_RUN = (
    "run it in a container of the base, copy the changed files out, and import them: "
    "imagebuild overlay import NAME --target TARGET --from-tree DIR"
)
ADVICE: Mapping[str, str] = {
    "sed": "write the replacement as an `edit` change in overlay.yaml",
    "perl": "write the replacement as an `edit` change in overlay.yaml",
    "ed": "write the replacement as an `edit` change in overlay.yaml",
    "pip": _WHEEL, "pip3": _WHEEL, "uv": _WHEEL, "easy_install": _WHEEL, "conda": _WHEEL,
    "curl": _DIFF, "wget": _DIFF,
    "git": _STAGE, "make": _STAGE, "cmake": _STAGE, "ninja": _STAGE, "gcc": _STAGE, "g++": _STAGE, "hipcc": _STAGE, "nvcc": _STAGE,
    "tar": _STAGE, "unzip": _STAGE,
    "apt": _STAGE, "apt-get": _STAGE, "dnf": _STAGE, "yum": _STAGE, "apk": _STAGE,
    "cp": "store the file in the overlay and write a `file` change",
    "install": "store the file in the overlay and write a `file` change",
    "rsync": "store the files in the overlay and write `file` changes",
    "dd": "store the file in the overlay and write a `file` or `blob` change",
    "touch": "an overlay sets no times",
    "mv": "write `delete` and `file` changes, or a patch with a rename",
    "rm": "write a `delete` change in overlay.yaml",
    "rmdir": "write a `delete` change in overlay.yaml",
    "find": "write a `delete` change with a glob and its count",
    "xargs": "write the changes that it makes into overlay.yaml",
    "ln": "write a `symlink` change in overlay.yaml",
    "chmod": "write `old mode` and `new mode` lines into a patch of the file",
    "chown": "an overlay keeps owners as they are",
    "mkdir": "folders are made for the files in them",
    "source": "import that script too, or what it changes",
    ".": "import that script too, or what it changes",
    "bash": "import that script too, or what it changes",
    "sh": "import that script too, or what it changes",
    "tee": "store the file in the overlay and write a `file` change",
    "python": _RUN, "python3": _RUN,
}  # fmt: skip

_WRITES = re.compile(
    r"open\(|write|unlink|remove|rename|replace\(|shutil|subprocess|os\.system|mkdir|symlink|touch|rmtree|exec\(|urlretrieve|sed"
)


def advice_for(program: str) -> str:
    """What to write instead of a command that cannot be taken over."""
    name = program.rpartition("/")[2]
    if name.startswith("python"):
        name = "python"
    return ADVICE.get(name, _RUN)


def only_looks(words: list[str], document: str | None) -> bool:
    """Whether a command that could change files does not, by its options: `sed` without `-i`, `git status`, a Python
    text that writes nothing."""
    name = words[0].rpartition("/")[2]
    rest = words[1:]
    if name in ("sed", "perl"):
        return not any(word.startswith(("-i", "--in-place", "-pi", "-ni")) for word in rest)
    if name.startswith("python"):
        text = document if document is not None else rest[rest.index("-c") + 1] if "-c" in rest[:-1] else None
        if "-m" in rest[:-1]:
            return rest[rest.index("-m") + 1] == "py_compile"
        return text is not None and _WRITES.search(text) is None
    if name == "git":
        inner = [word for word in rest if not word.startswith("-")]
        return bool(inner) and inner[0] in (
            "status",
            "rev-parse",
            "log",
            "diff",
            "show",
            "describe",
            "merge-base",
            "config",
        )
    if name in ("pip", "pip3", "uv"):
        return bool({"show", "list", "freeze", "check", "--version"} & set(rest))
    if name == "find":
        return not any(word in ("-delete", "-exec", "-execdir", "-ok") for word in rest)
    return name == "mkdir"
