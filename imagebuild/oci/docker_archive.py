"""`docker-archive:FILE[:NAME]`: what `docker load`, `podman load` and skopeo read, as sink only.

The format has no digest of a manifest, so nothing can be pinned in it: it is never a source.
"""

from __future__ import annotations

from pathlib import Path

from imagebuild.content.files import atomic_file
from imagebuild.content.reader import VerifiedReader
from imagebuild.oci.docker_image import checked_parts, docker_tags, inflated_parts, layer_stream, single_image
from imagebuild.oci.json_text import dump
from imagebuild.oci.plain_tar import TarWriter
from imagebuild.oci.reference import PathReference
from imagebuild.oci.source import Image, StoreResult


class DockerArchiveSink:
    """A docker-archive as ImageSink: one platform's image, bytes that depend on the image and its name alone.

    Layers that are gzip all of them go in as they are stored; if one is not (plain or zstd, which docker 20.10 does not
    load), all go in as plain tar, since readers judge an archive by its first layer.  Both are checked: the stored
    bytes by their digest, the plain ones by their diff_id too.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def location(self) -> str:
        return f"docker-archive:{self.path}"

    def store(
        self, image: Image, name: str | None = None, *, complete: bool = True, force: bool = False
    ) -> StoreResult:
        """Writes the archive; `name` is `REPO[:TAG]`.  `complete` is always so, and an older file is replaced.

        Raises InputError `oci.several-platforms`, `oci.bad-reference`; RefusedError `content.digest-mismatch`;
        UnavailableError `oci.blob-missing`, `content.disk-full`.
        """
        reference = PathReference("docker-archive", str(self.path), name)
        single = single_image(image, self.location)
        manifest, config, kinds = single.manifest, single.config, single.kinds
        plain = any(kind != "gzip" for kind in kinds)
        files = [
            f"{diff_id.hex}.tar" if plain else f"{layer.digest.hex}.tar.gz"
            for layer, diff_id in zip(manifest.layers, config.diff_ids, strict=True)
        ]
        listed = {"Config": f"{manifest.config.digest.hex}.json", "RepoTags": docker_tags(name), "Layers": files}
        with atomic_file(self.path) as out:
            tar = TarWriter(out)
            tar.add("manifest.json", dump([listed]))
            tar.add(f"{manifest.config.digest.hex}.json", config.raw)
            written = len(config.raw)
            seen: set[str] = set()
            for layer, diff_id, file, kind in zip(manifest.layers, config.diff_ids, files, kinds, strict=True):
                if file in seen:
                    continue
                seen.add(file)
                with layer_stream(image, layer) as stream:
                    reader = VerifiedReader(stream, layer.digest, layer.size, "layer")
                    if plain:
                        written += tar.gather(file, checked_parts(inflated_parts(reader, kind), diff_id, layer))
                    else:
                        written += tar.copy(file, reader)
            tar.close()
        return StoreResult(str(reference), single.document.descriptor.digest, uploaded_bytes=written)
