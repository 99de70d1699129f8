"""What an answer must match: OpenAI's formats and vLLM's structured outputs, as grammars."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from app.errors import bad_request, unsupported
from engine.wire import Grammar

MAX_SOURCE_CHARS = 128 * 1024
MAX_ALTERNATIVES = 1024

Source = Annotated[str, Meta(min_length=1, max_length=MAX_SOURCE_CHARS)]
Schema = dict[str, Any] | Source
Alternative = Annotated[str, Meta(min_length=1, max_length=MAX_SOURCE_CHARS)]
Alternatives = Annotated[list[Alternative], Meta(min_length=1, max_length=MAX_ALTERNATIVES)]

_SPECIAL = re.compile(r"[\\.^$*+?{}()\[\]|]")


class JsonSchema(msgspec.Struct):
    """The schema always holds, whatever strict says."""

    schema: dict[str, Any]
    name: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    """OpenAI's response_format: text, json_object or json_schema."""

    type: str
    json_schema: JsonSchema | None = None

    def grammar(self) -> Grammar | None:
        """None for text. Raises ApiError."""
        if self.type == "json_schema":
            if self.json_schema is None:
                where = "response_format.json_schema"
                raise bad_request(f"{where} is missing; it holds the schema.", where)
            return _json_schema(self.json_schema.schema, "response_format.json_schema.schema")
        return _by_type(self.type, "response_format.type")


class TextFormat(msgspec.Struct):
    """text.format of a response: as response_format, with the schema beside its type."""

    type: str = "text"
    schema: dict[str, Any] | None = None
    name: str | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct):
    """The field text of a response request."""

    format: TextFormat | None = None
    verbosity: str | None = None

    def grammar(self) -> Grammar | None:
        """None for text. Raises ApiError."""
        if self.verbosity not in (None, "medium"):
            raise unsupported("text.verbosity")
        if self.format is None:
            return None
        if self.format.type == "json_schema":
            if self.format.schema is None:
                raise bad_request("text.format.schema is missing.", "text.format.schema")
            return _json_schema(self.format.schema, "text.format.schema")
        return _by_type(self.format.type, "text.format.type")


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's structured_outputs: exactly one of its fields. choice: one of these texts."""

    json: Schema | None = None
    regex: Source | None = None
    choice: Alternatives | None = None
    grammar: Source | None = None
    json_object: bool | None = None

    def as_grammar(self, where: str) -> Grammar:
        """where: the field of the request. Raises ApiError."""
        given = [
            name for name in self.__struct_fields__ if getattr(self, name) not in (None, False)
        ]
        if len(given) != 1:
            names = ", ".join(self.__struct_fields__)
            raise bad_request(f"{where} takes exactly one of {names}.", where)
        at = f"{where}.{given[0]}" if where == "structured_outputs" else where
        if self.json is not None:
            return _json_schema(self.json, at)
        if self.regex is not None:
            return Grammar("regex", self.regex)
        if self.grammar is not None:
            return Grammar("grammar", self.grammar)
        if self.choice is not None:
            return Grammar("regex", _bounded("|".join(map(_literal, self.choice)), at))
        return Grammar("json_object")


def _by_type(type: str, where: str) -> Grammar | None:
    match type:
        case "text":
            return None
        case "json_object":
            return Grammar("json_object")
        case "structural_tag" | "grammar" | "python":
            raise unsupported(where)
    raise bad_request(f"{where} must be one of text, json_object, json_schema.", where)


def _json_schema(schema: Schema, where: str) -> Grammar:
    """A schema, as an object or as its JSON text."""
    if isinstance(schema, str):
        try:
            msgspec.json.decode(schema, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise bad_request(f"{where} is not the JSON of a schema: {error}.", where) from None
        return Grammar("json_schema", schema)
    return Grammar("json_schema", _bounded(msgspec.json.encode(schema).decode(), where))


def _bounded(source: str, where: str) -> str:
    if len(source) > MAX_SOURCE_CHARS:
        raise bad_request(f"{where} is longer than {MAX_SOURCE_CHARS} characters.", where)
    return source


def _literal(text: str) -> str:
    """A regular expression that matches this text alone."""
    return _SPECIAL.sub(r"\\\g<0>", text)
