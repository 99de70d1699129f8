"""Prefix cache: full pages known by a chained hash of every token up to their end."""

from __future__ import annotations

import hashlib
from array import array
from typing import Literal

from engine.pages import Pages
from engine.request import Request

Scope = Literal["shared", "tenant", "off"]


class PrefixCache:
    """Finds the pages that already hold the beginning of a request's text.

    A page's key is SHA-256 over the key before it and its own token ids, so equal keys mean equal
    text from the first token on: a collision, which would show one request another's text, is out
    of reach. Scope "tenant" puts the tenant before the first token: no tenant can find, or time,
    what another has sent. Scope "off" finds and keeps nothing.

    Only full pages of computed and committed tokens have keys. The output is among them, so the
    next turn of a chat finds the answer before it."""

    def __init__(self, pages: Pages, scope: Scope) -> None:
        self._pages = pages
        self._scope = scope

    def asks(self, request: Request) -> bool:
        """True when pages are looked up for the request."""
        return self._scope != "off" and request.may_reuse

    def match(self, request: Request) -> list[int]:
        """Pages for the beginning of the text. At least its last token stays uncovered: a row must
        be computed to give the next one."""
        if not self.asks(request):
            return []
        found: list[int] = []
        full = (len(request.tokens) - 1) // self._pages.page_size
        self._extend(request, full)
        for key in request.keys[:full]:
            page = self._pages.find(key)
            if page is None:
                break
            found.append(page)
        return found

    def register(self, request: Request) -> None:
        """Make the pages known that the request has filled since the last call."""
        full = request.computed // self._pages.page_size
        if full <= request.registered or self._scope == "off":
            return
        self._extend(request, full)
        for index in range(request.registered, full):
            self._pages.name(request.pages[index], request.keys[index])
        request.registered = full

    def forget(self, request: Request) -> None:
        """Make the pages unknown that a request has filled itself, because their content is in
        doubt. What it found is as good as before."""
        for page in request.pages[request.reused : request.registered]:
            self._pages.unname(page)

    def _extend(self, request: Request, count: int) -> None:
        """Compute the keys of the first `count` pages that are not there yet."""
        keys, size = request.keys, self._pages.page_size
        while len(keys) < count:
            start = len(keys) * size
            ids = array("i", request.tokens[start : start + size]).tobytes()
            keys.append(hashlib.sha256((keys[-1] if keys else self._root(request)) + ids).digest())

    def _root(self, request: Request) -> bytes:
        tenant = request.tenant if self._scope == "tenant" else ""
        root = hashlib.sha256(tenant.encode()).digest()
        if not request.cache_salt:
            return root
        return hashlib.sha256(root + request.cache_salt.encode()).digest()
