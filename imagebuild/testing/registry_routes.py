"""The scripted registry's right answers (distribution-spec 1.1)."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from imagebuild.content.digest import Digest
from imagebuild.oci import media_types as mt
from imagebuild.testing.registry_state import HeldRepository, Upload, index_of

if TYPE_CHECKING:
    from imagebuild.testing.registry_double import RegistryDouble

_session_numbers = itertools.count(1)


@dataclass(slots=True)
class Call:
    """A request with its body read."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    def first(self, name: str) -> str | None:
        values = self.query.get(name)
        return values[0] if values else None


@dataclass(slots=True)
class Answer:
    """An answer; `length` is the Content-Length that a HEAD states."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    length: int | None = None

    @classmethod
    def error(cls, status: int, code: str, message: str = "", headers: Mapping[str, str] | None = None) -> Answer:
        body = json.dumps({"errors": [{"code": code, "message": message or code.lower()}]}).encode()
        return cls(status, {"Content-Type": "application/json", **(headers or {})}, body)


class Routes:
    """One request about one repository, the double's lock being held."""

    def __init__(self, double: RegistryDouble, call: Call, name: str, partial: bool) -> None:
        self.double = double
        self.call = call
        self.name = name
        self.partial = partial

    @property
    def held(self) -> HeldRepository:
        return self.double.repositories.get(self.name) or HeldRepository()

    def _digest_header(self, digest: Digest) -> dict[str, str]:
        return {"Docker-Content-Digest": str(digest)} if self.double.digest_header else {}

    def serve(self, kind: str, rest: str) -> Answer:
        if kind == "tags" and rest == "list":
            return self._tags()
        if kind == "referrers":
            return self._referrers(rest)
        if kind == "manifests":
            return self._put_manifest(rest) if self.call.method == "PUT" else self._get_manifest(rest)
        if rest.startswith("uploads"):
            return self._upload(rest.removeprefix("uploads").strip("/"))
        return self._blob(rest)

    def _tags(self) -> Answer:
        tags = sorted(self.held.tags)
        return self._paged(
            tags, lambda part: json.dumps({"name": self.name, "tags": part}).encode(), "application/json"
        )

    def _referrers(self, subject: str) -> Answer:
        if not self.double.referrers:
            return Answer(404, {"Content-Type": "text/plain"}, b"404 page not found\n")
        return self._paged(self.held.referrers(subject), index_of, mt.OCI_INDEX)

    def _paged(self, items, body, media_type: str) -> Answer:  # type: ignore[no-untyped-def]
        start = int(self.call.first("start") or 0)
        headers = {"Content-Type": media_type}
        if start + self.double.page < len(items):
            headers["Link"] = f'<{self.call.path}?start={start + self.double.page}>; rel="next"'
        return Answer(200, headers, body(items[start : start + self.double.page]))

    def _get_manifest(self, reference: str) -> Answer:
        found = self.held.manifest(reference)
        if found is None:
            return Answer.error(404, "MANIFEST_UNKNOWN")
        digest, raw, media_type = found
        return Answer(200, {"Content-Type": media_type, **self._digest_header(digest)}, raw, len(raw))

    def _put_manifest(self, reference: str) -> Answer:
        raw, media_type = self.call.body, self.call.headers.get("content-type", "")
        digest = Digest.of(raw)
        if self.partial:
            return Answer.error(400, "MANIFEST_INVALID")
        if reference.startswith("sha256:") and Digest.parse(reference) != digest:
            return Answer.error(400, "DIGEST_INVALID")
        value = json.loads(raw)
        if value.get("mediaType", media_type) != media_type:
            return Answer.error(400, "MANIFEST_INVALID", "media type")
        if not self.double.creates and self.name not in self.double.repositories:
            return Answer.error(404, "NAME_UNKNOWN")
        held = self.double.repository(self.name)
        lacking = held.lacks(raw)
        if lacking and not reference.startswith("sha256-"):
            return Answer.error(404, "MANIFEST_BLOB_UNKNOWN", lacking[0])
        if not reference.startswith("sha256:"):
            if self.double.immutable and held.tags.get(reference, digest) != digest:
                return Answer.error(400, "TAG_INVALID", f"the tag {reference} is immutable")
            held.tags[reference] = digest
        held.manifests[digest] = (raw, media_type)
        headers = {"Location": f"/v2/{self.name}/manifests/{digest}", **self._digest_header(digest)}
        if self.double.referrers and "subject" in value:
            headers["OCI-Subject"] = value["subject"]["digest"]
        return Answer(201, headers)

    def _blob(self, text: str) -> Answer:
        digest = Digest.parse(text)
        data = self.held.blobs.get(digest)
        if data is None:
            return Answer.error(404, "BLOB_UNKNOWN")
        headers = {"Content-Type": "application/octet-stream", **self._digest_header(digest)}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.call.headers.get("range", ""))
        if wanted is None:
            return Answer(200, headers, data, len(data))
        first, last = int(wanted[1]), min(int(wanted[2] or len(data) - 1), len(data) - 1)
        if first > last:
            return Answer.error(416, "RANGE_INVALID")
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return Answer(206, headers, data[first : last + 1], last + 1 - first)

    def _upload(self, session: str) -> Answer:
        if self.call.method == "POST":
            return self._begin()
        upload = self.double.uploads.get(session)
        if upload is None or upload.repository != self.name:
            return Answer.error(404, "BLOB_UPLOAD_UNKNOWN")
        if self.double.changing_locations and self.call.first("state") != str(upload.state):
            return Answer.error(404, "BLOB_UPLOAD_UNKNOWN", "not the latest location")
        if self.call.method == "DELETE":
            del self.double.uploads[session]
            return Answer(204)
        if self.call.method == "GET":
            return Answer(204, self._where(session, upload))
        stated = re.fullmatch(r"(\d+)-(\d+)", self.call.headers.get("content-range", ""))
        if stated is not None and int(stated[1]) != len(upload.data):
            answer = Answer.error(416, "RANGE_INVALID")
            answer.headers.update(self._where(session, upload))
            return answer
        upload.data += self.call.body
        if self.partial:
            return Answer(500)
        if self.call.method == "PATCH":
            upload.state += 1
            return Answer(202, self._where(session, upload))
        return self._finish(session, upload)

    def _begin(self) -> Answer:
        if not self.double.creates and self.name not in self.double.repositories:
            return Answer.error(404, "NAME_UNKNOWN", f"no repository {self.name}")
        wanted, source = self.call.first("mount"), self.call.first("from")
        if wanted is not None:
            digest = Digest.parse(wanted)
            data = self._mountable(digest, source)
            if data is not None:
                self.double.put_blob(self.name, data)
                return Answer(201, {"Location": f"/v2/{self.name}/blobs/{digest}", **self._digest_header(digest)})
        session = f"session-{next(_session_numbers)}"
        upload = self.double.uploads[session] = Upload(self.name)
        headers = self._where(session, upload)
        if self.double.least_chunk:
            headers["OCI-Chunk-Min-Length"] = str(self.double.least_chunk)
        return Answer(202, headers)

    def _mountable(self, digest: Digest, source: str | None) -> bytes | None:
        if self.double.mounts == "never" or (source is None and self.double.mounts != "any"):
            return None
        if source is not None and self.double.tokens is not None:
            given = self.call.headers.get("authorization", "")[7:]
            if not self.double.tokens.covers(given, (f"repository:{source}", "pull")):
                return None
        for name in [source] if source is not None else list(self.double.repositories):
            held = self.double.repositories.get(name)
            if held is not None and digest in held.blobs:
                return held.blobs[digest]
        return None

    def _where(self, session: str, upload: Upload) -> dict[str, str]:
        location = f"/v2/{self.name}/blobs/uploads/{session}"
        if self.double.absolute:
            location = f"{self.double.scheme}://{self.double.host}{location}"
        if self.double.changing_locations:
            location += f"?state={upload.state}"
        return {"Location": location, "Range": f"0-{max(len(upload.data) - 1, 0)}"}

    def _finish(self, session: str, upload: Upload) -> Answer:
        digest = Digest.parse(self.call.first("digest") or "")
        if Digest.of(bytes(upload.data)) != digest:
            return Answer.error(400, "DIGEST_INVALID")
        del self.double.uploads[session]
        self.double.put_blob(self.name, bytes(upload.data))
        return Answer(201, {"Location": f"/v2/{self.name}/blobs/{digest}", **self._digest_header(digest)})
