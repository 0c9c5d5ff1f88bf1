"""The first question of a push, under way while the rest of the program is still being loaded."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from imagebuild.errors import ImagebuildError
from imagebuild.oci.reference import DigestReference, Reference, TagReference

if TYPE_CHECKING:
    from imagebuild.build.opening import Opener


def ask_ahead(opener: Opener, outputs: Iterable[Reference], base: Reference) -> Callable[[], None]:
    """Asks registries what the tags among `outputs` point at, each in a thread.

    What comes back waits for the answers, which the client remembers for the whole run, so that whoever needs one asks
    nothing; it raises the error of the first question that failed.  An output that cannot be opened is left to whoever
    opens it next.
    """
    asked: list[_Question] = []
    for reference in outputs:
        if isinstance(reference, TagReference):
            with contextlib.suppress(ImagebuildError):
                asked.append(_Question(_ask(opener, reference, base)))
    # All that the questions need is imported by now: threads that import can lock each other out.
    for question in asked:
        question.thread.start()

    def wait() -> None:
        for question in asked:
            question.wait()

    return wait


def _ask(opener: Opener, reference: TagReference, base: Reference) -> Callable[[], object]:
    from imagebuild.registry.sink import RegistrySink

    sink, tag = opener.sink(reference)
    assert isinstance(sink, RegistrySink)
    assert tag is not None
    # The base is named so that one token serves this question and the push that may follow.
    source = opener.source(base) if isinstance(base, DigestReference) else None
    return lambda: sink.current(tag, source)


class _Question:
    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="imagebuild-ahead", daemon=True)

    def _run(self) -> None:
        try:
            self._ask()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        self.thread.join()
        if self._error is not None:
            raise self._error
