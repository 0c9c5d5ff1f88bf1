"""Guards: both digests, the difference, what to do next."""

from __future__ import annotations

import hashlib

import pytest

from imagebuild.content.digest import Digest, git_blob_id
from imagebuild.errors import RefusedError
from imagebuild.oci.platform import Platform
from imagebuild.overlay.changes import Guard
from imagebuild.overlay.guards import (
    BaseFile,
    GuardState,
    check_postimage,
    check_preimage,
    git_id_agrees,
    join_guards,
    make_guard,
)

OLD, NEW = b"one\ntwo\nthree\n", b"one\n2\nthree\n"
GUARD = make_guard(BaseFile(OLD), NEW)


def refused(guard: Guard, found: bytes | None, **options: object) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        check_preimage("tep", "vllm/envs.py", guard, None if found is None else BaseFile(found), **options)  # type: ignore[arg-type]
    return caught.value


def test_a_guard_holds_both_digests_and_git_ids() -> None:
    assert GUARD.preimage == (Digest.of(OLD),)
    assert GUARD.postimage == Digest.of(NEW)
    assert git_blob_id(OLD).startswith(GUARD.preimage_git or "-")
    assert make_guard(None, NEW).preimage == (None,)


def test_matching_and_already_applied() -> None:
    assert check_preimage("tep", "vllm/envs.py", GUARD, BaseFile(OLD)) is GuardState.MATCHES
    assert check_preimage("tep", "vllm/envs.py", GUARD, BaseFile(NEW)) is GuardState.APPLIED
    several = Guard((Digest.of(b"x"), Digest.of(OLD)), Digest.of(NEW))
    assert check_preimage("tep", "vllm/envs.py", several, BaseFile(OLD)) is GuardState.MATCHES
    deleting = make_guard(BaseFile(OLD), None)
    assert check_preimage("tep", "vllm/envs.py", deleting, None) is GuardState.APPLIED


def test_a_mismatch_says_all_that_is_needed() -> None:
    error = refused(GUARD, OLD + b"extra\n", known={Digest.of(OLD): OLD}.get)
    assert error.code == "overlay.preimage-mismatch"
    assert "overlay tep: vllm/envs.py" in error.message
    assert error.expected == str(Digest.of(OLD))
    assert error.found == str(Digest.of(OLD + b"extra\n"))
    assert "+extra" in error.message
    assert "+extra" in error.details["diff"]
    assert error.hint is not None
    assert "imagebuild overlay edit tep vllm/envs.py" in error.hint
    assert error.details["already_applied"] is False


def test_a_whole_file_that_would_drop_lines_of_the_image_is_refused_with_the_diff() -> None:
    image = OLD + b"only the image has this\n"
    error = refused(GUARD, image, replacement=NEW)
    assert "-only the image has this" in error.message
    assert "the file found against the overlay's" in error.message


def test_binary_files_have_no_diff() -> None:
    error = refused(GUARD, b"\x7fELF\0", known={Digest.of(OLD): OLD}.get)
    assert "diff" not in error.details


def test_absence_has_its_own_codes() -> None:
    assert refused(GUARD, None).code == "overlay.path-missing"
    error = refused(make_guard(None, NEW), OLD)
    assert (error.code, error.expected) == ("overlay.path-exists", "absent")


def test_the_mode_is_compared_where_given() -> None:
    guard = Guard((Digest.of(OLD),), Digest.of(NEW), mode=0o755)
    error = refused(guard, OLD)
    assert (error.code, error.expected, error.found) == ("overlay.mode-mismatch", "0755", "0644")


def test_a_git_id_that_contradicts_the_sha256_is_found() -> None:
    guard = Guard((Digest.of(OLD),), Digest.of(NEW), preimage_git="064565cf1e")
    assert refused(guard, OLD).code == "overlay.git-id-mismatch"


def test_the_postimage_is_checked_too() -> None:
    check_postimage("tep", "vllm/envs.py", GUARD, BaseFile(NEW))
    with pytest.raises(RefusedError) as caught:
        check_postimage("tep", "vllm/envs.py", GUARD, BaseFile(NEW + b"x\n"), known={Digest.of(NEW): NEW}.get)
    assert caught.value.code == "overlay.postimage-mismatch"
    assert (caught.value.expected, caught.value.found) == (str(Digest.of(NEW)), str(Digest.of(NEW + b"x\n")))
    assert "+x" in caught.value.details["diff"]
    with pytest.raises(RefusedError):
        check_postimage("tep", "vllm/envs.py", GUARD, None)


def test_git_ids_whole_and_abbreviated_sha1_and_sha256() -> None:
    whole = git_blob_id(OLD)
    assert git_id_agrees(whole, OLD)
    assert git_id_agrees(whole[:7].upper(), OLD)
    assert not git_id_agrees(whole[:7], NEW)
    assert git_id_agrees(hashlib.sha256(b"blob %d\0" % len(OLD) + OLD).hexdigest(), OLD)


def test_guards_of_platforms_are_joined_where_equal() -> None:
    amd64, arm64 = Platform("linux", "amd64"), Platform("linux", "arm64")
    other = make_guard(BaseFile(b"arm\n"), NEW)
    assert join_guards({amd64: GUARD, arm64: GUARD}) == GUARD
    assert join_guards({arm64: other, amd64: GUARD}) == {amd64: GUARD, arm64: other}


def test_facts_that_contradict_their_bytes_are_refused() -> None:
    with pytest.raises(RefusedError):
        BaseFile(OLD, 0o644, Digest.of(NEW))
    with pytest.raises(ValueError):
        BaseFile(None)
