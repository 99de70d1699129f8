"""An uploaded corpus: its documents read, checked and packed into parts."""

from __future__ import annotations

import codecs
import re
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from app.corpora.slices import SLICE_BYTES, elements_of, lines_of, start_of
from app.malformed import explain
from engine.wire import MAX_CORPUS_CHARACTERS

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
JSON, LINES, TEXT = "application/json", "application/x-ndjson", "text/plain"
EXPLAINED_BYTES = 64 * 1024
"""To say more of a larger one would take too long."""
IDS_BYTES = 64 * 1024
"""Of JSON, decoded in one go: a millisecond. That many ids fit a message to the engine."""
WORK_S, REST_S = 0.002, 0.0005
PART_BYTES = 1024 * 1024
PART_PIECES = 4096
"""A part is full at so many raw bytes or pieces: to pack and unpack it takes a millisecond or two
without a pause."""

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_PATH = re.compile(r" - at `\$\.?([^`]*)`")
_INDEX = re.compile(r"`\$\[(\d+)\]`")


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A document, or a piece of one that is longer than a message to the engine may be: text, or
    token ids as little-endian int32."""

    continues: bool
    text: str = ""
    ids: bytes = b""

    @property
    def size(self) -> int:
        return len(self.text.encode()) + len(self.ids)


class _Document(msgspec.Struct, gc=False):
    text: str | None = None
    token_ids: msgspec.Raw = msgspec.Raw(b"null")


class _Documents(msgspec.Struct, forbid_unknown_fields=True):
    documents: list[msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Upload:
    """parts: compressed, for `unpack`. bytes: of the text, and four for each token id."""

    parts: tuple[bytes, ...]
    documents: int
    bytes: int
    token_ids: int


class BadUpload(Exception):
    """What is wrong, and where: param is a path in the body, None for the whole."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def read_upload(body: bytes | bytearray, media_type: str, vocabulary: int | None) -> Upload:
    """The documents of a body; empty ones are left out. vocabulary: the model's ids are below it;
    None when it is not known yet. Takes seconds for a large body, in steps that let other threads
    run. Raises BadUpload."""
    packer, pace = _Packer(), _Pace()
    for pieces in _documents(body, media_type, vocabulary):
        for piece in pieces:
            packer.add(piece)
            pace.rest()
        pace.rest()
    if not packer.documents:
        raise BadUpload("The corpus is empty: it has no document with text or token ids.")
    return packer.finish()


def packed(pieces: Iterable[Piece]) -> Upload:
    """Documents that were read and checked already, in steps that let other threads run."""
    packer, pace = _Packer(), _Pace()
    for piece in pieces:
        packer.add(piece)
        pace.rest()
    return packer.finish()


def unpack(part: bytes) -> list[Piece]:
    """The pieces of a part, in order. Raises ValueError when it is damaged."""
    try:
        return msgspec.msgpack.decode(zlib.decompress(part), type=list[Piece])
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from error


class _Packer:
    """Collects documents in parts of about PART_BYTES."""

    def __init__(self) -> None:
        self.documents = self._bytes = self._ids = self._filled = 0
        self._parts: list[bytes] = []
        self._pieces: list[Piece] = []

    def add(self, piece: Piece) -> None:
        self.documents += not piece.continues
        self._ids += len(piece.ids) // 4
        self._bytes += piece.size
        self._filled += piece.size
        self._pieces.append(piece)
        if self._filled >= PART_BYTES or len(self._pieces) == PART_PIECES:
            self._close()

    def finish(self) -> Upload:
        if self._pieces:
            self._close()
        return Upload(tuple(self._parts), self.documents, self._bytes, self._ids)

    def _close(self) -> None:
        self._parts.append(zlib.compress(msgspec.msgpack.encode(self._pieces)))
        self._pieces, self._filled = [], 0


class _Pace:
    """Lets other threads run every few milliseconds: a decoder holds the interpreter."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def rest(self) -> None:
        if time.perf_counter() - self._since > WORK_S:
            time.sleep(REST_S)
            self._since = time.perf_counter()


def _documents(
    body: bytes | bytearray, media_type: str, vocabulary: int | None
) -> Iterator[Iterator[Piece]]:
    """The pieces of each document."""
    if media_type == TEXT:
        yield _texts(_decoded_text(body))
    elif media_type == LINES:
        for number, line in lines_of(body):
            yield _pieces(line, f"line {number}", vocabulary)
    elif media_type == JSON:
        for index, element in enumerate(_elements(body)):
            yield _pieces(element, f"documents[{index}]", vocabulary)
    else:
        raise BadUpload(f"The body must be {JSON}, {LINES} or {TEXT}, as Content-Type says.")


def _elements(body: bytes | bytearray) -> Iterator[bytes | bytearray]:
    """The documents of a JSON body, not decoded yet."""
    found = elements_of(body)
    if found is None:
        raise _not_documents(body)
    try:
        yield from found
    except ValueError:
        raise _not_documents(body) from None


def _not_documents(body: bytes | bytearray) -> BadUpload:
    if len(body) <= EXPLAINED_BYTES:
        try:
            msgspec.json.decode(body, type=_Documents)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return _wrong(error, "", bytes(body))
    return BadUpload(
        'The body must be {"documents": [{"text": …} or {"token_ids": […]}, …]} and nothing else.'
    )


def _pieces(document: bytes | bytearray, place: str, vocabulary: int | None) -> Iterator[Piece]:
    """Of a document as JSON."""
    try:
        found = msgspec.json.decode(document, type=_Document)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _wrong(error, place, bytes(document)) from None
    array = bytes(found.token_ids).strip()
    if (found.text is None) == (array == b"null"):
        raise BadUpload(f"{place} must have exactly one of text and token_ids.", place)
    if found.text is not None:
        yield from _texts([found.text])
        return
    for start, ids in _ids(array, f"{place}.token_ids", vocabulary):
        yield Piece(start > 0, ids=ids.tobytes())


def _texts(chunks: Iterable[str]) -> Iterator[Piece]:
    """Of a text that comes in chunks."""
    for number, text in enumerate(_cut(chunks)):
        yield Piece(number > 0, text)


def _decoded_text(body: bytes | bytearray) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(start_of(body), len(body) + 1, SLICE_BYTES):
        kept, _ = decoder.getstate()
        try:
            yield decoder.decode(body[at : at + SLICE_BYTES], at + SLICE_BYTES > len(body))
        except UnicodeDecodeError as error:
            where = at - len(kept) + error.start
            raise BadUpload(f"The text is not UTF-8: see byte {where:,}.") from None


def _wrong(error: Exception, place: str, body: bytes) -> BadUpload:
    """body: what could not be decoded, of which the place is the whole."""
    text, path = str(error), None
    if match := _PATH.search(text):
        text, path = text.replace(match[0], ""), match[1]
    elif len(body) <= EXPLAINED_BYTES:
        text, path = explain(text.rstrip("."), body)
        text = text.removeprefix(f"{path}: ")
    place = ".".join(filter(None, (place, path)))
    return BadUpload(f"{place or 'The body'}: {text}.", place or None)


def _ids(
    array: bytes, place: str, vocabulary: int | None
) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """A JSON array of token ids, decoded a little at a time: [n] int32 and where they start."""
    if not (array.startswith(b"[") and array.endswith(b"]")):
        raise BadUpload(f"{place} must be a list of token ids.", place)
    start, at, end = 0, 1, len(array) - 1
    while at < end:
        comma = array.find(b",", min(at + IDS_BYTES, end), end)
        stop = end if comma < 0 else comma
        try:
            found = msgspec.json.decode(b"[%b]" % array[at:stop], type=list[TokenId])
        except msgspec.MsgspecError as error:
            inside = _INDEX.search(str(error))
            where = f"{place}[{start + int(inside[1])}]" if inside else place
            text = _PATH.sub("", str(error))
            raise BadUpload(f"{where}: {text}.", where) from None
        ids = np.array(found, "<i4")
        if vocabulary is not None and len(ids) and int(ids.max()) >= vocabulary:
            index = int(np.flatnonzero(ids >= vocabulary)[0])
            where = f"{place}[{start + index}]"
            raise BadUpload(
                f"{where} is {ids[index]:,}; the model's token ids are 0 to {vocabulary - 1:,}.",
                where,
            )
        if len(ids):
            yield start, ids
        start, at = start + len(ids), stop + 1


def _cut(chunks: Iterable[str]) -> Iterator[str]:
    """Pieces that the engine tokenises at once: cut after a line, else after a blank, where the
    last quarter has one."""
    rest = ""
    for chunk in chunks:
        text, start = rest + chunk, 0
        while len(text) - start > MAX_CORPUS_CHARACTERS:
            end = start + MAX_CORPUS_CHARACTERS
            least = end - MAX_CORPUS_CHARACTERS // 4
            end = next((at for mark in "\n " if (at := text.rfind(mark, least, end) + 1)), end)
            yield text[start:end]
            start = end
        rest = text[start:]
    if rest:
        yield rest
