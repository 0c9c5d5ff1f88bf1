"""Laws of the Dockerfile reader over random text."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from imagebuild.build.dockerfile import Dockerfile, parse_dockerfile, with_argument
from imagebuild.build.stage_rules import check_stage
from imagebuild.content.digest import Digest
from imagebuild.errors import ImagebuildError, InputError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import StageChange

PIN = Digest.of(b"base")
PIECES = st.sampled_from(
    [
        "FROM scratch", f"FROM debian@{PIN} AS a", "FROM ${B:-x}", "RUN make \\", "RUN <<EOF", "EOF", "  # remark", "",
        "COPY --from=a x y", "COPY --from=busybox x y", 'ADD ["https://h.example/x", "/"]', "ARG B=debian", "  && more", "\t",
        "# syntax=x", "# escape=`", "RUN a `", "RUN --mount=type=cache,target=/c b", "LABEL a=$", "from b as c d", "$x", "\\",
    ]
)  # fmt: skip
TEXTS = st.one_of(st.lists(PIECES, max_size=12).map("\n".join), st.text(max_size=60))
CHANGE = StageChange("x.Dockerfile", {"/x": "root/x"}, reproducible=True)


def read(text: str) -> Dockerfile | None:
    try:
        return parse_dockerfile(text.encode("utf-8", "surrogatepass"), "x.Dockerfile")
    except InputError as error:
        code = error.code
    assert code == "stage.bad-dockerfile"
    return None


@given(TEXTS)
def test_any_text_is_read_or_refused(text: str) -> None:
    found = read(text)
    if found is None:
        return
    lines = [(one.line, one.end) for one in found.instructions]
    assert all(line <= end for line, end in lines)
    assert all(one[1] < two[0] for one, two in pairwise(lines))


@given(TEXTS)
def test_the_rules_pass_or_say_which_is_broken(text: str) -> None:
    found = read(text)
    if found is None:
        return
    code, bases = "stage.", ()
    try:
        bases = check_stage(found, CHANGE, Platform.parse("linux/amd64"))
    except ImagebuildError as error:
        code = error.code
    assert code.startswith("stage.")
    assert all(base.reference.digest == PIN for base in bases)
    assert "busybox" not in {str(base.reference) for base in bases}


@given(TEXTS)
def test_a_declared_argument_changes_nothing_else(text: str) -> None:
    found = read(text)
    if found is None:
        return
    again = read(with_argument(found, "SOURCE_DATE_EPOCH").decode())
    assert again is not None
    words = [(one.keyword, one.flags, one.rest) for one in again.instructions]
    expected: list[tuple[str, tuple[tuple[str, str], ...], str]] = []
    for one in found.instructions:
        expected.append((one.keyword, one.flags, one.rest))
        if one.keyword == "FROM":
            expected.append(("ARG", (), "SOURCE_DATE_EPOCH"))
    assert words == expected
