"""How changes and guards are written in overlay.yaml."""

from __future__ import annotations

from typing import Any

from imagebuild.content.digest import Digest
from imagebuild.content.schema import Boolean, ByKey, Field, Integer, List, Map, Object, PerKey, Shape, Text
from imagebuild.overlay.changes import (
    ABSENT,
    BlobChange,
    DeleteChange,
    EditChange,
    EnvChange,
    FileChange,
    Guard,
    PatchChange,
    StageChange,
    SymlinkChange,
    WheelChange,
)
from imagebuild.overlay.vocabulary import (
    ABSOLUTE_PATH,
    DIGEST,
    DISTRIBUTION,
    ENV,
    ENV_NAME,
    ENV_VALUE,
    GIT_ID,
    LOCAL_PATH,
    MODE,
    PINNED,
    PLATFORM,
    ROOT_GLOB,
    ROOT_PATH,
    URL,
    VERSION,
)


def _image(text: str) -> Digest | None:
    return None if text == ABSENT else Digest.parse(text)


_IMAGE = Text(
    f"a digest or the word {ABSENT}",
    pattern=f"{ABSENT}|sha256:[0-9a-f]{{64}}",
    form=f"sha256:<64 lower-case hexadecimal digits> or {ABSENT}",
    parse=_image,
)


def _guard(values: dict[str, Any]) -> Guard:
    preimage = values.pop("preimage")
    return Guard(preimage if isinstance(preimage, tuple) else (preimage,), **values)


_GUARD = Object(
    {
        "preimage": Field(
            Shape(
                "a digest, the word absent, or a list of them",
                scalar=_IMAGE,
                items=List(_IMAGE, minimum=1, unique=True),
            ),
            "sha256 of what the base must hold, or absent; a list where several are accepted",
            required=True,
        ),
        "preimage_git": Field(GIT_ID, "git's blob id of the preimage, perhaps abbreviated"),
        "postimage": Field(_IMAGE, "sha256 of what stands there afterwards, or absent", required=True),
        "postimage_git": Field(GIT_ID, "git's blob id of the postimage, perhaps abbreviated"),
        "mode": Field(MODE, "permission bits that the base's file must have"),
    },
    "a guard",
    _guard,
)

GUARDS = Map(
    ROOT_PATH,
    PerKey(_GUARD, Map(PLATFORM, _GUARD, "a mapping from platforms to guards")),
    "a mapping from paths to guards",
)


def _nested(word: str, schema: Object | ByKey, description: str) -> Object:
    return Object({word: Field(schema, description, required=True)}, "a change", lambda values: values[word])


_EDIT_TEXT = Text("text", lines=True, limit=200_000)
_BLOB = {
    "path": Field(ROOT_PATH, "where it goes, ROOT/relative", required=True),
    "sha256": Field(DIGEST, "digest of the file", required=True),
    "elf": Field(Text("an ELF machine", choices=("x86_64", "aarch64")), "machine that the ELF header must name"),
    "gfx": Field(Text("an AMD architecture", pattern="gfx[0-9a-f]{3,4}"), "architecture of its code objects"),
    "mode": Field(MODE, "permission bits; those of the file that it replaces, else 0644"),
    "platforms": Field(List(PLATFORM, minimum=1, unique=True), "platforms that get it; all if left out"),
}
_SIZE = Integer("a size in bytes", minimum=1, maximum=1 << 40)

CHANGE = ByKey(
    {
        "patch": Object(
            {"patch": Field(LOCAL_PATH, "unified diff, below this folder", required=True)},
            "a patch",
            lambda values: PatchChange(**values),
        ),
        "file": Object(
            {
                "file": Field(LOCAL_PATH, "whole file, below this folder", required=True),
                "to": Field(ROOT_PATH, "where it goes, ROOT/relative", required=True),
            },
            "a file",
            lambda values: FileChange(**values),
        ),
        "edit": _nested(
            "edit",
            Object(
                {
                    "path": Field(ROOT_PATH, "file to edit, ROOT/relative", required=True),
                    "find": Field(_EDIT_TEXT, "text that stands there exactly once", required=True),
                    "replace": Field(
                        Text("text", lines=True, empty=True, limit=200_000), "text instead", required=True
                    ),
                },
                "an edit",
                lambda values: EditChange(**values),
            ),
            "one anchored replacement",
        ),
        "delete": _nested(
            "delete",
            ByKey(
                {
                    "path": Object(
                        {"path": Field(ROOT_PATH, "what to delete, ROOT/relative", required=True)},
                        "a deletion",
                        lambda values: DeleteChange(**values),
                    ),
                    "glob": Object(
                        {
                            "glob": Field(ROOT_GLOB, "what to delete; ** crosses folders", required=True),
                            "count": Field(
                                Integer("a count", minimum=1), "how many paths it must match", required=True
                            ),
                        },
                        "a deletion",
                        lambda values: DeleteChange(**values),
                    ),
                },
                "a deletion",
            ),
            "one path, or a glob with its count",
        ),
        "symlink": _nested(
            "symlink",
            Object(
                {
                    "path": Field(ROOT_PATH, "where the link stands, ROOT/relative", required=True),
                    "to": Field(Text("a link's target"), "the link's text", required=True),
                },
                "a symbolic link",
                lambda values: SymlinkChange(**values),
            ),
            "a symbolic link",
        ),
        "wheel": _nested(
            "wheel",
            Object(
                {
                    "name": Field(DISTRIBUTION, "the distribution's name", required=True),
                    "version": Field(VERSION, "its exact version", required=True),
                    "sha256": Field(
                        Map(PLATFORM, DIGEST, minimum=1), "the wheel's digest for each platform", required=True
                    ),
                    "url": Field(URL, "its address; left out, the package index"),
                    "without": Field(
                        List(DISTRIBUTION, minimum=1, unique=True), "requirements that the image does without"
                    ),
                },
                "a wheel",
                lambda values: WheelChange(**values),
            ),
            "a pinned Python distribution",
        ),
        "blob": _nested(
            "blob",
            ByKey(
                {
                    "url": Object(
                        {
                            **_BLOB,
                            "url": Field(URL, "where it comes from", required=True),
                            "size": Field(_SIZE, "its size in bytes", required=True),
                        },
                        "a blob",
                        lambda values: BlobChange(**values),
                    ),
                    "file": Object(
                        {
                            **_BLOB,
                            "file": Field(LOCAL_PATH, "where it lies, below this folder", required=True),
                            "size": Field(_SIZE, "its size in bytes"),
                        },
                        "a blob",
                        lambda values: BlobChange(**values),
                    ),
                },
                "a blob",
            ),
            "a pinned file of any kind",
        ),
        "stage": _nested(
            "stage",
            Object(
                {
                    "dockerfile": Field(LOCAL_PATH, "below the workspace", required=True),
                    "args": Field(
                        Map(ENV_NAME, ENV_VALUE, "a mapping from build arguments to values"), "build arguments"
                    ),
                    "network": Field(
                        Text("a network", choices=("none", "default")), "network while it runs; none if left out"
                    ),
                    "out": Field(
                        Map(ABSOLUTE_PATH, ROOT_PATH, minimum=1), "path in the stage: ROOT/relative", required=True
                    ),
                    "reproducible": Field(Boolean(), "whether two builds must give the same bytes"),
                    "artifact": Field(PINNED, "the finished output, by digest"),
                },
                "a stage",
                lambda values: StageChange(**values),
            ),
            "files made by a Dockerfile",
        ),
        "env": Object(
            {"env": Field(ENV, "environment defaults", required=True)}, "env", lambda values: EnvChange(**values)
        ),
    },
    "a change",
)
