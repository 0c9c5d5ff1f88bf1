"""Descriptors: read strictly, written back verbatim."""

import dataclasses
from typing import Any

import pytest

from imagebuild.content.digest import Digest
from imagebuild.errors import InputError
from imagebuild.oci import media_types as mt
from imagebuild.oci.descriptor import Descriptor
from imagebuild.oci.json_text import dump, parse
from imagebuild.oci.platform import Platform

D1, D2 = Digest.of(b"1"), Digest.of(b"2")


def text(**more: Any) -> dict[str, Any]:
    return {"mediaType": mt.OCI_LAYER, "digest": str(D1), "size": 7, **more}


def test_read_and_written_back_verbatim() -> None:
    raw = (
        b'{"x-first":1e2,"size":7,"digest":"%s","annotations":{"b":"2","a":"1"},"mediaType":"%s",'
        b'"platform":{"os":"linux","os.version":"10","architecture":"arm64","features":["a"]},"urls":["u"]}'
    ) % (str(D1).encode(), mt.OCI_LAYER.encode())
    found = Descriptor.from_json(parse(raw, "t"), "t")
    assert (found.digest, found.size, found.platform) == (D1, 7, Platform("linux", "arm64"))
    assert dump(found.to_json()) == raw


def test_ours_has_one_order() -> None:
    ours = Descriptor(mt.OCI_MANIFEST, D1, 3, Platform("linux", "amd64"), {"b": "2", "a": "1"}, "a/b")
    assert dump(ours.to_json()).decode() == (
        f'{{"mediaType":"{mt.OCI_MANIFEST}","digest":"{D1}","size":3,"platform":{{"architecture":"amd64","os":"linux"}},'
        '"annotations":{"a":"1","b":"2"},"artifactType":"a/b"}'
    )


def test_equal_and_hashable_whatever_it_was_read_from() -> None:
    read = Descriptor.from_json(text(annotations={"a": "1"}, extra=1), "t")
    made = Descriptor(mt.OCI_LAYER, D1, 7, None, {"a": "1"})
    assert read == made
    assert {read: 1}[made] == 1


def test_a_replaced_field_wins_over_what_was_read() -> None:
    read = Descriptor.from_json(text(annotations={"a": "1"}, extra=1, data="AA==", artifactType="x/y"), "t")
    out = dataclasses.replace(
        read, digest=D2, annotations={}, artifact_type=None, platform=Platform("a", "b")
    ).to_json()
    assert out == {
        "mediaType": mt.OCI_LAYER,
        "digest": str(D2),
        "size": 7,
        "extra": 1,
        "platform": {"architecture": "b", "os": "a"},
    }


def test_replaced_keeps_keys_and_order_but_not_the_old_content() -> None:
    read = Descriptor.from_json(parse(dump(text(data="AA==", urls=["u"], platform={"os": "l", "x": 1})), "t"), "t")
    assert dump(read.replaced(D2, 99, mt.OCI_LAYER_GZIP)).decode() == (
        f'{{"mediaType":"{mt.OCI_LAYER_GZIP}","digest":"{D2}","size":99,"platform":{{"os":"l","x":1}}}}'
    )
    assert "data" in read.replaced(D1, 7)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "x",
        {},
        text(mediaType=None),
        text(mediaType=""),
        text(mediaType="no-slash"),
        text(mediaType="a/b\n"),
        text(mediaType="a/" + "b" * 201),
        text(digest=None),
        text(digest=5),
        text(digest="sha512:" + "0" * 128),
        text(digest=f"sha256:{D1.hex.upper()}"),
        text(digest=f"sha256:{D1.hex}/../x"),
        text(digest=f"sha256:{D1.hex}\n"),
        text(size=None),
        text(size=-1),
        text(size=1.0),
        text(size=True),
        text(size="7"),
        text(size=1 << 63),
        text(annotations=[]),
        text(annotations={"a": 1}),
        text(annotations="x"),
        text(artifactType=1),
        text(platform="linux/amd64"),
        text(platform={"os": 1}),
        text(platform={"OS": "linux"}),
        text(Digest=str(D2)),
        text(**{"\u017fize": 8}),
    ],
)
def test_refused(value: Any) -> None:
    with pytest.raises(InputError) as caught:
        Descriptor.from_json(value, "layer 3")
    assert caught.value.code in ("oci.bad-descriptor", "content.bad-digest", "oci.bad-platform")


@pytest.mark.parametrize("number", [b"1e1", b"7.0", b"9" * 30, b"-0.0"])
def test_sizes_are_whole_numbers(number: bytes) -> None:
    raw = b'{"mediaType":"a/b","digest":"%s","size":%s}' % (str(D1).encode(), number)
    with pytest.raises(InputError, match="size"):
        Descriptor.from_json(parse(raw, "t"), "t")


def test_construction_validates() -> None:
    with pytest.raises(InputError, match="mediaType"):
        Descriptor("", D1, 1)
    with pytest.raises(InputError, match="size"):
        Descriptor("a/b", D1, -1)


def test_an_empty_platform_is_none() -> None:
    assert Descriptor.from_json(text(platform={}), "t").platform is None
    assert Descriptor.from_json(text(platform=None, annotations=None, artifactType=None), "t").platform is None
