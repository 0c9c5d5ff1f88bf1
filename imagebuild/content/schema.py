"""A declaration of what a file may hold, read two ways: `validate` checks a YAML tree and builds its values, and
`json_schema` gives the same declaration as JSON Schema 2020-12, for editors.

Every fault of a file is found in one pass; each names file, line, key and, for a misspelt word, the nearest known one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from imagebuild.content.schema_values import (
    INVALID,
    Boolean,
    Faults,
    Integer,
    Number,
    Schema,
    Text,
    describe,
    locate,
    nearest,
)
from imagebuild.content.strict_yaml import ListNode, MapNode, Node, ScalarNode, raise_faults
from imagebuild.errors import InputError, SeveralErrors

__all__ = [
    "INVALID", "Boolean", "ByKey", "Faults", "Field", "Integer", "List", "Map", "Number", "Object", "PerKey", "Schema", "Shape",
    "Text", "build_each", "describe", "json_schema", "locate", "nearest", "validate",
]  # fmt: skip

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_T = TypeVar("_T")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class List(Schema):
    """A list of `item`, as a tuple; `minimum` items at least, no two equal with `unique`."""

    item: Schema
    what: str = "a list"
    minimum: int = 0
    unique: bool = False

    def read(self, node: Node, key: str, faults: Faults) -> Any:
        if not isinstance(node, ListNode):
            return faults.add("schema.wrong-type", node, key, f"{self.what} belongs here", found=describe(node))
        if len(node.items) < self.minimum:
            return faults.add("schema.bad-value", node, key, f"at least {self.minimum} belong here", found="none")
        values = [self.item.read(item, f"{key}[{number}]", faults) for number, item in enumerate(node.items)]
        if self.unique:
            seen: list[Any] = []
            for number, value in enumerate(values):
                if value is not INVALID and value in seen:
                    faults.add("schema.duplicate", node.items[number], f"{key}[{number}]", "stands in the list twice")
                seen.append(value)
        return INVALID if any(value is INVALID for value in values) else tuple(values)

    def json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"type": "array", "items": self.item.json()}
        if self.minimum:
            out["minItems"] = self.minimum
        if self.unique:
            out["uniqueItems"] = True
        return out


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Map(Schema):
    """A mapping whose keys are the author's own: `name` reads each key, `value` each value; order is kept."""

    name: Text
    value: Schema
    what: str = "a mapping"
    minimum: int = 0

    def read(self, node: Node, key: str, faults: Faults) -> Any:
        if not isinstance(node, MapNode):
            return faults.add("schema.wrong-type", node, key, f"{self.what} belongs here", found=describe(node))
        if len(node.entries) < self.minimum:
            return faults.add("schema.bad-value", node, key, f"at least {self.minimum} belong here", found="none")
        out: dict[Any, Any] = {}
        whole = True
        for text, (name_node, value_node) in node.entries.items():
            below = f"{key}.{text}" if key else text
            name = self.name.read(name_node, below, faults)
            value = self.value.read(value_node, below, faults)
            if name is INVALID or value is INVALID:
                whole = False
            else:
                out[name] = value
        return MappingProxyType(out) if whole else INVALID

    def json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "type": "object",
            "propertyNames": self.name.json(),
            "additionalProperties": self.value.json(),
        }
        if self.minimum:
            out["minProperties"] = self.minimum
        return out


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Field:
    """One key of an Object; `description` is what an editor shows."""

    schema: Schema
    description: str = ""
    required: bool = False


def _json_field(item: Field) -> dict[str, Any]:
    out = item.schema.json()
    return {"description": item.description, **out} if item.description else out


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Object(Schema):
    """A mapping with known keys and no others.  `build` makes a value of those that are present (default: the dict);
    the InputError that it raises is placed at its detail `key`, and belongs to the keys of its detail `with` too."""

    fields: Mapping[str, Field]
    what: str = "a mapping"
    build: Callable[[dict[str, Any]], Any] | None = None

    def read(self, node: Node, key: str, faults: Faults) -> Any:
        if not isinstance(node, MapNode):
            return faults.add("schema.wrong-type", node, key, f"{self.what} belongs here", found=describe(node))
        values: dict[str, Any] = {}
        doubtful: set[str] = set()
        unknown = False
        for name, (name_node, value_node) in node.entries.items():
            known = self.fields.get(name)
            below = f"{key}.{name}" if key else name
            if known is None:
                unknown = True
                near = nearest(name, [word for word in self.fields if word not in node.entries])
                if near is not None:
                    doubtful.add(near)
                near = near or nearest(name, self.fields)
                faults.add(
                    "schema.unknown-key",
                    name_node,
                    below,
                    "unknown key",
                    expected=" | ".join(self.fields),
                    hint=f"did you mean {near}?" if near else None,
                )
                continue
            value = known.schema.read(value_node, below, faults)
            if value is INVALID:
                doubtful.add(name)
            else:
                values[name] = value
        missing = [name for name, known in self.fields.items() if known.required and name not in node.entries]
        for name in missing:
            faults.add(
                "schema.missing-key",
                node,
                key,
                f"{self.what} needs the key {name}",
                hint=self.fields[name].description or None,
            )
        built = self._build(node, key, values, doubtful, faults)
        return INVALID if unknown or doubtful or missing else built

    def _build(self, node: MapNode, key: str, values: dict[str, Any], doubtful: set[str], faults: Faults) -> Any:
        """The value; also tried where only optional keys are wrong, so that what is wrong between the others is told
        in the same pass.  What a doubtful key has part in is then left out (detail `with` names further keys)."""
        if self.build is None:
            return values
        if any(known.required and name not in values for name, known in self.fields.items()):
            return INVALID
        try:
            return self.build(values)
        except (InputError, SeveralErrors) as error:
            for one in error.errors if isinstance(error, SeveralErrors) else (error,):
                parts = {
                    str(one.details.get("key", "")).partition(".")[0].partition("[")[0],
                    *one.details.get("with", ()),
                }
                if isinstance(one, InputError) and not parts & doubtful:
                    faults.place(one, node, key)
            return INVALID

    def json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "type": "object",
            "properties": {name: _json_field(item) for name, item in self.fields.items()},
            "additionalProperties": False,
        }
        required = [name for name, item in self.fields.items() if item.required]
        if required:
            out["required"] = required
        return out


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ByKey(Schema):
    """A mapping of one of several kinds, told apart by the one key that only this kind has."""

    kinds: Mapping[str, Object]
    what: str

    def read(self, node: Node, key: str, faults: Faults) -> Any:
        words = " | ".join(self.kinds)
        if not isinstance(node, MapNode):
            return faults.add("schema.wrong-type", node, key, f"{self.what} belongs here", found=describe(node))
        present = [name for name in self.kinds if name in node.entries]
        if len(present) == 1:
            return self.kinds[present[0]].read(node, key, faults)
        if present:
            return faults.add(
                "schema.several-kinds",
                node.entries[present[1]][0],
                key,
                f"{self.what} is of one kind only",
                expected=f"one of {words}",
                found=" and ".join(present),
            )
        near = next((found for name in node.entries if (found := nearest(name, self.kinds))), None)
        return faults.add(
            "schema.no-kind",
            node,
            key,
            f"{self.what} needs one of the keys {', '.join(self.kinds)}",
            found=", ".join(node.entries) or "no key",
            hint=f"did you mean {near}?" if near else None,
        )

    def json(self) -> dict[str, Any]:
        return {"oneOf": [kind.json() for kind in self.kinds.values()]}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shape(Schema):
    """A value that may be written in several shapes, told apart by what YAML shape stands there."""

    what: str
    scalar: Schema | None = None
    items: Schema | None = None
    mapping: Schema | None = None

    def read(self, node: Node, key: str, faults: Faults) -> Any:
        schema = (
            self.scalar if isinstance(node, ScalarNode) else self.items if isinstance(node, ListNode) else self.mapping
        )
        if schema is None:
            return faults.add("schema.wrong-type", node, key, f"{self.what} belongs here", found=describe(node))
        return schema.read(node, key, faults)

    def json(self) -> dict[str, Any]:
        return {"anyOf": [one.json() for one in (self.scalar, self.items, self.mapping) if one is not None]}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PerKey(Schema):
    """Either `one` mapping, or a mapping from keys that contain `mark` to such mappings (one for each platform)."""

    one: Object
    several: Map
    mark: str = "/"

    def read(self, node: Node, key: str, faults: Faults) -> Any:
        if isinstance(node, MapNode) and any(self.mark in name for name in node.entries):
            return self.several.read(node, key, faults)
        return self.one.read(node, key, faults)

    def json(self) -> dict[str, Any]:
        return {"anyOf": [self.one.json(), {**self.several.json(), "minProperties": 1}]}


def build_each(values: Mapping[str, _V], make: Callable[[str, _V], _T], key: str) -> Mapping[str, _T]:
    """`make` of each name and value; for an Object's `build`.  The errors of all are raised at once, their detail `key`
    below `key` and the name."""
    out: dict[str, _T] = {}
    faults: list[InputError] = []
    for name, value in values.items():
        try:
            out[name] = make(name, value)
        except InputError as error:
            below = error.details.get("key")
            error.details["key"] = f"{key}.{name}.{below}" if below else f"{key}.{name}"
            faults.append(error)
    if faults:
        raise SeveralErrors(faults)
    return MappingProxyType(out)


def validate(node: Node, schema: Schema) -> Any:
    """The value of a tree.  Raises the InputError of its one fault, or SeveralErrors of them all; codes `schema.*`, and
    those of the values' own constructors."""
    faults = Faults()
    value = schema.read(node, "", faults)
    foreign = [error for error in faults.errors if error.code == "schema.unknown-version"]
    raise_faults(foreign or faults.errors)
    return value


def json_schema(schema: Schema, *, name: str, title: str) -> dict[str, Any]:
    """The declaration as a JSON Schema document (2020-12) with the identifier `name`."""
    return {"$schema": DIALECT, "$id": name, "title": title, **schema.json()}
