"""A second thread that fetches, verifies and decompresses a layer while the first one reads the tar.

Inflating and hashing release the interpreter's lock, so two cores are used.  Whatever happens in either thread, the
other one ends: the pump always puts a last item, and closing it always empties the queue.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from enum import Enum

from imagebuild.content.reader import Readable, VerifiedReader

CHUNK = 1 << 20
"""Bytes of one piece of uncompressed data at most."""
_DEPTH = 12


class _Mode(Enum):
    RUN = 0
    VERIFY = 1
    ABORT = 2


class _Tap:
    """Counts what passes and remembers a fault of the stream itself, so that it is not asked again."""

    def __init__(self, stream: VerifiedReader) -> None:
        self._stream = stream
        self.count = 0
        self.fault: BaseException | None = None

    def read(self, size: int = -1, /) -> bytes:
        try:
            data = self._stream.read(size)
        except BaseException as error:
            self.fault = error
            raise
        self.count += len(data)
        return data


class Pump:
    """Pieces of the uncompressed stream, made in a second thread.

    `decompress` makes the reader of uncompressed bytes over the verified one.  `next()` gives the next piece and the
    compressed bytes that were read so far; b"" only after the whole compressed stream was verified.  A fault of the
    second thread is raised from `next()`: one of the stream or its digest before one of the decompressor, since corrupt
    bytes explain everything that follows them.
    """

    def __init__(self, verified: VerifiedReader, decompress: Callable[[Readable], Readable]) -> None:
        self._tap = _Tap(verified)
        self._decompress = decompress
        self._queue: queue.Queue[tuple[bytes, int] | _End] = queue.Queue(_DEPTH)
        self._mode = _Mode.RUN
        self._end: _End | None = None
        self._thread = threading.Thread(target=self._run, name="imagebuild-layer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        fault: BaseException | None = None
        try:
            try:
                reader = self._decompress(self._tap)
                while self._mode is _Mode.RUN:
                    data = reader.read(CHUNK)
                    if not data:
                        break
                    self._queue.put((data, self._tap.count))
            except BaseException as error:
                fault = error
            if self._tap.fault is None:
                while not self._aborted() and self._tap.read(CHUNK):
                    pass
        except BaseException as error:
            fault = error
        finally:
            self._queue.put(_End(fault, self._tap.count))

    def _aborted(self) -> bool:
        return self._mode is _Mode.ABORT

    def next(self) -> tuple[bytes, int]:
        """The next piece and the count of compressed bytes so far; raises what the second thread met."""
        if self._end is None:
            item = self._queue.get()
            if not isinstance(item, _End):
                return item
            self._end = item
            self._thread.join()
        if self._end.fault is not None:
            raise self._end.fault
        return b"", self._end.count

    def verify_rest(self) -> None:
        """Reads the rest of the compressed stream without decompressing it; raises where it is not what was promised.
        For a caller that found the uncompressed bytes wrong and asks whether they were corrupted on the way."""
        self._stop(_Mode.VERIFY)
        if self._end is not None and self._tap.fault is not None:
            raise self._tap.fault

    def close(self) -> None:
        """Ends the second thread; the stream is not touched afterwards."""
        self._stop(_Mode.ABORT)

    def _stop(self, mode: _Mode) -> None:
        if self._end is not None:
            return
        self._mode = mode
        while self._end is None:
            item = self._queue.get()
            if isinstance(item, _End):
                self._end = item
        self._thread.join()


class _End:
    """The last item: the fault that ended the pump, None where it read everything."""

    def __init__(self, fault: BaseException | None, count: int) -> None:
        self.fault = fault
        self.count = count
