"""The repository that a waiver goes to, read as it lies there: configurations, recipes, images, variables.

The layout is that of a benchmark repository: master files that map configuration keys to `image`, recipes that name the
same image as `model.container` (and `identity.container.image`), scripts, a changelog.  `.imagebuild.yaml` there names
other places.  Its files are others': what cannot be read is told and left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagebuild.content.files import refuse_too_many
from imagebuild.content.schema import nearest, validate
from imagebuild.content.strict_yaml import load_yaml
from imagebuild.errors import ImagebuildError, InputError
from imagebuild.oci.reference import DigestReference, TagReference, parse_reference
from imagebuild.target.workspace import MAP_NAME, WORKSPACE, Folders
from imagebuild.waiver.change import ChangeSet
from imagebuild.waiver.changelog import matches_key
from imagebuild.waiver.findings import BLOCKING, NOTE, WARNING, Finding
from imagebuild.waiver.page import Page
from imagebuild.waiver.render import WaiverFacts

MASTERS = ("configs/*-master.yaml", ".github/configs/*-master.yaml")
RECIPES = ("benchmarks", "recipes")
CHANGELOG = "perf-changelog.yaml"
FILE_LIMIT = 20_000
SIZE_LIMIT = 4 << 20
NODE_LIMIT = 500_000


@dataclass(frozen=True, slots=True)
class Recipe:
    """A file that starts engines: the images that it names, by the key they stand under, and the variables that it sets,
    with the places (key path or line) where it does."""

    file: str
    images: Mapping[str, str] = field(hash=False)
    variables: Mapping[str, tuple[str, ...]] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Repository:
    """`configs` maps each configuration key to its master file and entry; `unread` the files that could not be read."""

    configs: Mapping[str, tuple[str, Mapping[str, Any]]] = field(hash=False)
    recipes: tuple[Recipe, ...]
    changelog: str | None
    unread: tuple[str, ...] = ()


def load_repository(root: Path) -> Repository:
    """Raises InputError `waiver.no-repository`, `content.too-many-files`, and what reading `.imagebuild.yaml` raises."""
    if not root.is_dir():
        raise InputError("waiver.no-repository", f"{root} is not a folder", found=str(root))
    mapped: Folders = validate(load_yaml(root / MAP_NAME), WORKSPACE) if (root / MAP_NAME).is_file() else Folders()
    unread: list[str] = []
    configs: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for pattern in mapped.masters or MASTERS:
        for path in sorted(path for path in root.glob(pattern) if path.is_file()):
            shown = str(path.relative_to(root))
            value = _read(path, shown, unread)
            for key, entry in (value if isinstance(value, dict) else {}).items():
                if isinstance(entry, dict):
                    configs.setdefault(key, (shown, entry))
    if not configs:
        raise InputError(
            "waiver.no-repository",
            f"no configuration was found below {root}",
            expected=", ".join(mapped.masters or MASTERS),
            hint=f"`masters` in {root / MAP_NAME} names the files that list them",
        )
    recipes = []
    for folder in (mapped.recipes,) if mapped.recipes else RECIPES:
        # a stranger's link may lead to a device that never ends
        paths = sorted(p for p in (root / folder).rglob("*") if p.suffix in (".yaml", ".yml", ".sh") and p.is_file())
        refuse_too_many(root / folder, len(paths), FILE_LIMIT)
        for path in paths:
            shown = str(path.relative_to(root))
            recipe = (_script if path.suffix == ".sh" else _recipe)(path, shown, unread)
            if recipe is not None:
                recipes.append(recipe)
    changelog = mapped.changelog or (CHANGELOG if (root / CHANGELOG).is_file() else None)
    return Repository(configs, tuple(recipes), changelog, tuple(unread))


def _read(path: Path, shown: str, unread: list[str]) -> Any:
    """Others' YAML, merge keys and anchors included; None (and `unread`) where it is none, too large or too deep."""
    import yaml

    try:
        return _plain(yaml.load(_bytes(path), getattr(yaml, "CSafeLoader", yaml.SafeLoader)), [NODE_LIMIT])
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        unread.append(shown)
        return None


def _bytes(path: Path) -> bytes:
    """Raises OSError, ValueError for a file that is larger than any of its kind."""
    with path.open("rb") as stream:
        data = stream.read(SIZE_LIMIT + 1)
    if len(data) > SIZE_LIMIT:
        raise ValueError("too large")
    return data


def _plain(value: Any, left: list[int]) -> Any:
    """A copy as a tree, so that an alias that is used a thousand times costs a thousand nodes, and no more than allowed."""
    left[0] -= 1
    if left[0] < 0:
        raise ValueError("too many nodes")
    if isinstance(value, dict):
        return {str(key): _plain(item, left) for key, item in value.items()}
    return [_plain(item, left) for item in value] if isinstance(value, list) else value


def _recipe(path: Path, shown: str, unread: list[str]) -> Recipe | None:
    value = _read(path, shown, unread)
    if not isinstance(value, dict):
        return None
    images = {}
    for where in (("model", "container"), ("identity", "container", "image")):
        found: Any = value
        for key in where:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, str):
            images[".".join(where)] = found
    if not images:
        return None
    variables: dict[str, list[str]] = {}
    _walk(value, "", variables)
    return Recipe(shown, images, {name: tuple(places) for name, places in variables.items()})


_NAME = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+")


def _walk(value: Any, where: str, out: dict[str, list[str]]) -> None:
    """Variables are keys in capitals below a key that speaks of the environment."""
    if isinstance(value, dict):
        for key, item in value.items():
            place = f"{where}.{key}" if where else str(key)
            if isinstance(key, str) and _NAME.fullmatch(key) and "env" in where.rpartition(".")[2].lower():
                out.setdefault(key, []).append(f"{place}={item}")
            _walk(item, place, out)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _walk(item, f"{where}[{index}]", out)


_EXPORT = re.compile(r"^\s*(?:export\s+|-e\s+)([A-Z][A-Z0-9]*_[A-Z0-9_]+)=(\S*)", re.MULTILINE)


def _script(path: Path, shown: str, unread: list[str]) -> Recipe | None:
    try:
        text = _bytes(path).decode("utf-8", "replace")
    except (OSError, ValueError):
        unread.append(shown)
        return None
    variables: dict[str, list[str]] = {}
    for found in _EXPORT.finditer(text):
        line = text.count("\n", 0, found.start(1)) + 1
        variables.setdefault(found[1], []).append(f"line {line}={found[2]}")
    return Recipe(shown, {}, {name: tuple(places) for name, places in variables.items()}) if variables else None


def check_repository(
    repository: Repository, page: Page, facts: WaiverFacts | None, keys: frozenset[str], change: ChangeSet | None
) -> Iterator[Finding]:
    """What waivers.md asks of `--repo`."""
    for file in repository.unread:
        yield Finding("repo.unreadable", WARNING, "not read: too large, or no YAML that can be understood", file)
    for key in sorted(keys):
        if key not in repository.configs:
            near = nearest(key, tuple(repository.configs))
            yield Finding(
                "repo.config-unknown",
                BLOCKING,
                f"no master file has {key}" + (f"; {near} is there" if near else ""),
                page.file,
            )
    wanted = {target.image for target in facts.targets if target.image} if facts is not None else set()
    yield from _images(repository, keys, wanted)
    yield from _variables(repository, facts)
    if change is not None:
        yield from _image_bump(repository, change)


def same_image(one: str, other: str) -> bool:
    """Whether two names mean one image: repository and, of digest and tag, what both have."""
    try:
        left, right = parse_reference(one), parse_reference(other)
    except ImagebuildError:
        return one == other
    if not (isinstance(left, DigestReference | TagReference) and isinstance(right, DigestReference | TagReference)):
        return one == other
    if left.repository != right.repository:
        return False
    if isinstance(left, DigestReference) and isinstance(right, DigestReference):
        return left.digest == right.digest
    return bool(left.tag) and left.tag == right.tag


def _images(repository: Repository, keys: frozenset[str], wanted: set[str]) -> Iterator[Finding]:
    for key in sorted(keys & set(repository.configs)):
        file, entry = repository.configs[key]
        image = entry.get("image")
        if not isinstance(image, str):
            yield Finding("repo.no-image", WARNING, f"{key} names no image", file)
            continue
        if wanted and not any(same_image(image, one) for one in wanted):
            yield Finding(
                "repo.image-differs",
                BLOCKING,
                f"{key} runs {image}, the waiver is for {', '.join(sorted(wanted))}",
                file,
            )
        for recipe in repository.recipes:
            if not (_belongs(recipe, key, entry) and recipe.images):
                continue
            for place, other in recipe.images.items():
                if not same_image(image, other):
                    yield Finding(
                        "repo.image-differs", BLOCKING, f"{place} is {other}, {key} runs {image}", recipe.file
                    )


def _belongs(recipe: Recipe, key: str, entry: Mapping[str, Any]) -> bool:
    """Whether a configuration uses a recipe: its entry names the file (CONFIG_FILE=…), or the file is named by the key."""
    named = re.findall(r"[\w./-]+\.(?:ya?ml|sh)", repr(entry))
    stem = recipe.file.rpartition("/")[2].rpartition(".")[0]
    return any(recipe.file.endswith(name.lstrip("./")) for name in named) or stem.replace("_", "-").startswith(key)


def _variables(repository: Repository, facts: WaiverFacts | None) -> Iterator[Finding]:
    if facts is None:
        return
    switches = {o.switch.env: o.switch for t in facts.targets for o in t.overlays if o.switch is not None}
    for name, switch in sorted(switches.items()):
        points = [f"{r.file} ({place})" for r in repository.recipes for place in r.variables.get(name, ())]
        on = [point for point in points if point.endswith((f"={switch.on})", f"='{switch.on}')"))]
        told = ", ".join(on[:20]) if on else "no recipe"
        yield Finding("repo.switch-points", NOTE, f"{name}={switch.on} is set by {told}")
    registered = {name for target in facts.targets for name in facts.variables.get(target.name, ())}
    if not registered:
        yield Finding(
            "repo.variables-unknown",
            NOTE,
            "which variables the image registers is not known: its envs.py is not kept here",
        )
        return
    prefixes = {name.partition("_")[0] + "_" for name in registered if name.partition("_")[0] in ("VLLM", "SGLANG")}
    prefixes |= {name.partition("_")[0] + "_" for name in switches}
    images = {target.image for target in facts.targets if target.image}
    for recipe in repository.recipes:
        if recipe.images and not any(same_image(i, o) for i in recipe.images.values() for o in images):
            continue
        for name in sorted(recipe.variables):
            if any(name.startswith(prefix) for prefix in prefixes) and name not in registered:
                near = nearest(name, tuple(sorted(registered)))
                yield Finding(
                    "repo.variable-unregistered",
                    BLOCKING,
                    f"{name} is no variable of this image" + (f"; {near} is" if near else ""),
                    recipe.file,
                )


_IMAGE = re.compile(r"^\s*image:\s*(\S+)")


def _image_bump(repository: Repository, change: ChangeSet) -> Iterator[Finding]:
    """A master file whose `image` changes has a changelog entry for the configuration."""
    masters = {file for file, _ in repository.configs.values()}
    log = change.find(repository.changelog) if repository.changelog else None
    added = [line.text.strip().removeprefix("- ").strip("'\"") for line in log.added] if log is not None else []
    for file in change.files:
        if file.new not in masters:
            continue
        for line in file.added:
            found = _IMAGE.match(line.text)
            if not found:
                continue
            keys = [
                k
                for k, (where, entry) in repository.configs.items()
                if where == file.new and entry.get("image") == found[1].strip("'\"")
            ]
            if not any(matches_key(pattern, key) for key in keys for pattern in added if pattern):
                yield Finding(
                    "repo.no-changelog-entry",
                    BLOCKING,
                    f"the image of {', '.join(keys[:5]) or 'a configuration'} changes without an entry in"
                    f" {repository.changelog or CHANGELOG}",
                    file.new,
                    line.number,
                )
