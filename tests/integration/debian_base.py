"""A small runnable Debian with gcc and Python's headers, for amd64 and arm64, as an image in the test's registry.

Packages are fetched by debootstrap and unpacked without running anything, so that no emulation is needed to make the
arm64 one.  The root is kept as a tar in IMAGEBUILD_CI_CACHE (else for the session); its bytes follow from what the mirror
gave on that day, so nothing that is committed refers to it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import tools
from real_registry import RealRegistry

from imagebuild.content.digest import Digest
from imagebuild.oci import media_types as mt

SUITE = "bookworm"
PYTHON = "python3.11"
INCLUDE = "gcc,libc6-dev,python3-dev"
LEFT_OUT = ("./usr/share/doc/*", "./usr/share/man/*", "./usr/share/locale/*", "./usr/share/info/*")
MERGED = {"amd64": ("bin", "sbin", "lib", "lib64"), "arm64": ("bin", "sbin", "lib")}
VERSION = 1
"""Number of the way in which the tar is made; another number makes another file."""


def mirror() -> list[str]:
    """The mirror that apt uses here; none lets debootstrap take its own default."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    lines = [line.split() for line in done.stdout.splitlines()]
    return next(([words[0]] for words in lines if words[1:] == [SUITE]), [])


def debian_tar(folder: Path, architecture: str) -> Path:
    """The root file system as a tar below `folder`, made when it is not there."""
    tar = folder / f"debian-{SUITE}-gcc-{architecture}-{VERSION}.tar"
    if tar.is_file():
        return tar
    tools.root()
    folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"debian-{architecture}-", dir=folder))
    work.chmod(0o755)
    root = work / "root"
    for name in MERGED[architecture]:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    command = [tools.program("debootstrap"), "--download-only", f"--arch={architecture}", "--variant=minbase"]
    command += [f"--include={INCLUDE}", SUITE, str(work / "packages"), *mirror()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    if done.returncode != 0:
        tools.missing(f"debootstrap cannot fetch {SUITE} for {architecture}: {done.stdout[-500:]}{done.stderr[-500:]}")
    for package in sorted((work / "packages" / "var" / "cache" / "apt" / "archives").glob("*.deb")):
        leave = [f"--exclude={pattern}" for pattern in LEFT_OUT]
        into = ["tar", "-x", "-C", str(root), "--keep-directory-symlink", *leave]
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as unpacked:
            subprocess.run(into, stdin=unpacked.stdout, check=True)
        assert unpacked.returncode == 0
    pack = ["tar", "-C", str(root), "--sort=name", "--mtime=@1700000000", "--owner=0", "--group=0", "--numeric-owner"]
    subprocess.run([*pack, "-cf", str(work / "root.tar"), "."], check=True)
    os.replace(work / "root.tar", tar)
    shutil.rmtree(work)
    return tar


def push_base(registry: RealRegistry, repository: str, tar: Path, architecture: str) -> str:
    """Puts the tar into the registry as an image of one plain layer; its pinned reference."""
    data = tar.read_bytes()
    layer = Digest.of(data)
    config = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "created": "2023-11-14T22:13:20Z",
            "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": ["/usr/bin/python3"]},
            "rootfs": {"type": "layers", "diff_ids": [str(layer)]},
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": mt.OCI_MANIFEST,
            "config": {"mediaType": mt.OCI_CONFIG, "digest": str(Digest.of(config)), "size": len(config)},
            "layers": [{"mediaType": mt.OCI_LAYER, "digest": str(layer), "size": len(data)}],
        }
    ).encode()
    registry.put_blob(repository, layer, data)
    registry.put_blob(repository, Digest.of(config), config)
    registry.put_manifest(repository, architecture, manifest, mt.OCI_MANIFEST)
    return f"{registry.host}/{repository}:{architecture}@{Digest.of(manifest)}"


BINFMT = Path("/proc/sys/fs/binfmt_misc")
QEMU = "/usr/bin/qemu-aarch64-static"
AARCH64 = (
    r":qemu-aarch64:M::\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:"
    r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:" + QEMU + ":OCF"
)
"""F opens the interpreter now, so that it is found inside containers; C keeps credentials."""


def emulate_arm64() -> str | None:
    """Registers qemu for aarch64 programs, where that was not done; what keeps it from being done, None for nothing.

    It stays, since others may count on it by then.  An engine looks at what it can run when it starts.
    """
    if os.uname().machine == "aarch64" or (BINFMT / "qemu-aarch64").exists():
        return None
    if os.geteuid() != 0:
        return "needs root to register qemu"
    if not Path(QEMU).exists():
        return "the package qemu-user-static is not installed"
    if not (BINFMT / "register").exists():
        done = subprocess.run(
            ["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT)], capture_output=True, check=False
        )
        if done.returncode != 0:
            return f"binfmt_misc cannot be mounted: {done.stderr.decode(errors='replace')[-200:]}"
    try:
        (BINFMT / "register").write_text(AARCH64)
    except OSError as error:
        # a test in another process may have been first
        if not (BINFMT / "qemu-aarch64").exists():
            return f"qemu cannot be registered: {error}"
    return None
