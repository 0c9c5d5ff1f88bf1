"""Reading a layer once: every entry listed, every file hashed, every rule of images.md (Reading the base) applied."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from imagebuild.content.digest import Digest
from imagebuild.content.reader import Readable, VerifiedReader
from imagebuild.errors import RefusedError
from imagebuild.layer.compression import DecompressingReader, uncompressed_limit
from imagebuild.layer.cursor import Cursor
from imagebuild.layer.entry import Entry, LayerFacts
from imagebuild.layer.names import TarFault, bytes_of
from imagebuild.layer.pump import Pump
from imagebuild.layer.tar_loop import Capture, TarLoop
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.documents import layer_compression

ENTRY_LIMIT = 5_000_000
"""Tar headers of a layer at most (images.md, Reading 6)."""
CAPTURE_LIMIT = 64 << 20
"""Bytes of all captured files at most."""
Captured = Callable[[Entry, bytes], None]
_HINTS = {"base.capture-too-large": "name fewer or smaller files of this layer"}


def read_layer(
    stream: Readable,
    descriptor: Descriptor,
    *,
    capture: Capture | None = None,
    captured: Captured | None = None,
    progress: Callable[[int], None] | None = None,
    entry_limit: int = ENTRY_LIMIT,
    capture_limit: int = CAPTURE_LIMIT,
) -> LayerFacts:
    """Reads the layer `descriptor` from `stream` to its end, and returns what it says.

    Nothing is returned or delivered before size and digest of the stored bytes were found right.  `capture(path, size)`
    is asked for each regular file while reading; the files it wants go to `captured(entry, data)` after that, in path
    order, only the entry that counts for each path, `capture_limit` bytes in all at most.  `progress` is called with
    the number of stored bytes that arrived since its last call.  All three are called in the calling thread.

    The stream is read in a second thread, which has ended when this function returns or raises; the caller closes it.
    Memory stays at some 30 MiB for data plus about 250 bytes for each entry, whatever the layer's size.

    Raises RefusedError: `content.digest-mismatch` or `content.size-mismatch` (also where corruption shows first as a
    broken tar), `oci.unknown-layer-type`, and for a layer that breaks a rule `base.…` (codes.yaml); whatever the
    stream raises passes through.
    """
    what = f"layer {descriptor.digest}"
    declared = layer_compression(descriptor, what)
    verified = VerifiedReader(stream, descriptor.digest, descriptor.size, what)
    limit = uncompressed_limit(descriptor.size)
    pump = Pump(verified, lambda source: DecompressingReader(source, declared, limit, what))
    try:
        # A layer that is stored plain has one digest for both; no need to hash it twice.
        hasher = None if declared == "none" else hashlib.sha256()
        cursor = Cursor(pump, hasher, progress)
        reading = TarLoop(cursor, what, limit, entry_limit, capture, capture_limit)
        try:
            reading.run()
            tail = cursor.drain()
            entries = reading.finish()
        except TarFault as fault:
            pump.verify_rest()
            raise RefusedError(
                fault.code,
                f"{what}, header at byte {reading.header}: {fault.text}",
                hint=_HINTS.get(
                    fault.code, "the layer is stored this way, its digest is right: the publisher must mend it"
                ),
            ) from fault
        diff_id = descriptor.digest if hasher is None else Digest(hasher.hexdigest())
        if tail:
            reading.notes.add(("base.trailing-data", ""))
    finally:
        pump.close()
    if captured is not None:
        for path in sorted(reading.data, key=bytes_of):
            captured(entries[path], reading.data[path])
    return LayerFacts(
        descriptor.digest,
        diff_id,
        cursor.offset,
        entries,
        frozenset(reading.whiteouts),
        frozenset(reading.opaques),
        tuple(sorted(reading.notes)),
    )
