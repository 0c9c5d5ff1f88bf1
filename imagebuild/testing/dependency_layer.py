"""What an engine depends on, as far as package metadata tells: dist-info folders without the packages themselves."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from imagebuild.oci.platform import Platform
from imagebuild.testing.base_layers import GetWheel
from imagebuild.testing.base_tar import Item, file_item, with_parents
from imagebuild.testing.wheel_fetch import WheelPin
from imagebuild.testing.wheel_install import DIST_PACKAGES, Installer, Layout, record_line


@dataclass(frozen=True, slots=True)
class DependencyLayer:
    """One dist-info for each requirement of a wheel, in a version that meets it: METADATA, INSTALLER and RECORD.

    An image of this base answers `importlib.metadata` as the real one does, and imports nothing of it.  `versions` are those of
    further distributions, and of requirements that name no least version.
    """

    wheels: Mapping[Platform, WheelPin]
    versions: Mapping[str, str] = field(default_factory=dict)
    layout: Layout = DIST_PACKAGES
    installer: Installer = "pip"
    python: str = "3.12"

    @property
    def created_by(self) -> str:
        return f"RUN {'uv pip' if self.installer == 'uv' else 'pip'} install -r requirements.txt"

    def describe(self, platform: Platform) -> Any:
        return {
            "kind": "dependencies",
            "sha256": str(self.wheels[platform].sha256),
            "versions": dict(self.versions),
            "site": self.layout.site,
            "installer": self.installer,
            "python": self.python,
        }

    def expected_size(self, platform: Platform) -> int:
        return 0

    def items(self, platform: Platform, layer_time: int, get_wheel: GetWheel) -> Iterator[Item]:
        with zipfile.ZipFile(get_wheel(self.wheels[platform])) as archive:
            (name,) = (
                name for name in archive.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1
            )
            metadata = archive.read(name).decode("utf-8")
        wanted = {**self._required(metadata, platform), **self.versions}
        files: list[Item] = []
        for distribution, version in wanted.items():
            files += self._files(distribution, version)
        yield from with_parents(sorted(files, key=lambda item: item.path))

    def _required(self, metadata: str, platform: Platform) -> dict[str, str]:
        """Requirements that hold on the platform, each in its exact or least version."""
        from packaging.requirements import Requirement

        environment = {
            "extra": "",
            "platform_machine": platform.machine,
            "platform_system": "Linux",
            "sys_platform": "linux",
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
        }
        out: dict[str, str] = {}
        for line in metadata.partition("\n\n")[0].splitlines():
            if line.startswith("Requires-Dist:"):
                found = Requirement(line.partition(":")[2].strip())
                if found.marker is None or found.marker.evaluate(environment):
                    bounds = {one.operator: one.version for one in found.specifier if "*" not in one.version}
                    out[found.name] = bounds.get("==") or bounds.get(">=") or "1.0.0"
        return out

    def _files(self, name: str, version: str) -> list[Item]:
        info = f"{name.replace('-', '_').replace('.', '_')}-{version}.dist-info"
        summary = "Summary: Stands in for the distribution of that name\n"
        content = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{summary}".encode(),
            "INSTALLER": b"pip\n" if self.installer == "pip" else b"uv",
        }
        rows = [record_line(f"{info}/{file}", data) for file, data in sorted(content.items())] + [f"{info}/RECORD,,\n"]
        content["RECORD"] = "".join(rows).encode()
        return [file_item(f"{self.layout.site}/{info}/{file}", data) for file, data in content.items()]
