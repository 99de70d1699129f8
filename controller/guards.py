"""Bounds on harm: what drafting really gained against the clock of plain decoding."""

from __future__ import annotations

import math
from collections import OrderedDict

MEMORY_STEPS = 512
MIN_DRAFTING_STEPS = 32
NO_PROBES_AT = 0.01
FALL_BACK_AT = 0.02
DWELL, LONGEST_DWELL = 256, 4096

REQUEST_TRIAL = 16
REQUEST_LOSS = 4.0
REQUEST_CREDIT = 8.0
REQUEST_DWELL, REQUEST_LONGEST = 32, 512
MAX_REQUESTS = 4096


class HarmGuard:
    """Compares drafting steps with what their tokens would have cost without drafts.

    Sums are discounted (512 steps); a shorter past counts as 512 steps without loss, so that a
    cold start may try something. Below -1 % probes stop. Below -2 %, by more than one
    standard error, plain decoding is forced for a dwell of 256 steps, doubled up to 4,096 when it
    fires again; afterwards drafting is free again and the shadow scores decide."""

    def __init__(self) -> None:
        self._clock = self._gain = self._square = self._steps = self._drafting = 0.0
        self._left = 0
        self._dwell = DWELL
        self._quiet = 0
        self.fired = 0

    @property
    def active(self) -> bool:
        return self._left > 0

    @property
    def loss(self) -> float:
        """Share of the window's time lost to drafting; negative when it gains."""
        return -self._gain / self._window if self._clock else 0.0

    @property
    def _window(self) -> float:
        """Plain ms of a full window at the mean step."""
        return self._clock / self._steps * MEMORY_STEPS

    @property
    def probes_allowed(self) -> bool:
        return not self.active and self.loss <= NO_PROBES_AT

    @property
    def dwell_left(self) -> int:
        return self._left

    def record(self, clock_ms: float, real_ms: float, drafting: bool) -> bool:
        """One step whose tokens plain decoding would have made in `clock_ms`. True when the guard
        fires. Plain steps only lengthen the window: they cannot be harmful."""
        keep = 1.0 - 1.0 / MEMORY_STEPS
        gain = clock_ms - real_ms if drafting else 0.0
        self._clock = keep * self._clock + clock_ms
        self._gain = keep * self._gain + gain
        self._square = keep * self._square + gain * gain
        self._steps = keep * self._steps + 1.0
        self._drafting = keep * self._drafting + drafting
        if self.active or self._drafting < MIN_DRAFTING_STEPS:
            return False
        if self.loss - math.sqrt(self._square) / self._window <= FALL_BACK_AT:
            return False
        self._left = self._dwell
        self._dwell = min(2 * self._dwell, LONGEST_DWELL)
        self._empty()
        self._quiet = 0
        self.fired += 1
        return True

    def tick(self) -> bool:
        """One planned step. True when the dwell ends with it."""
        if self._left:
            self._left -= 1
            return self._left == 0
        self._quiet += 1
        if self._quiet >= LONGEST_DWELL:
            self._dwell = DWELL
        return False

    def release(self) -> None:
        """The operator changed the setting: start afresh."""
        self._left = 0
        self._dwell = DWELL
        self._empty()

    def _empty(self) -> None:
        self._clock = self._gain = self._square = self._steps = self._drafting = 0.0

    def report(self) -> dict[str, object]:
        return {
            "loss": round(self.loss, 5),
            "active": self.active,
            "dwell_left": self._left,
            "fired": self.fired,
        }


class _Account:
    __slots__ = ("drafted", "dwell", "left", "net", "price", "square")

    def __init__(self) -> None:
        self.net = 0.0
        self.square = 0.0
        self.price = 0.0
        self.drafted = 0
        self.left = 0
        self.dwell = REQUEST_DWELL


class RequestGuard:
    """Stops drafting for a request that keeps paying more than it gets (adversarial text).

    Each live draft adds accepted - price * drafted tokens, price in tokens per row. After at
    least 16 drafted tokens a net of -4 by more than one standard error (two misses of long drafts
    that else hit in full are no loss yet) stands the request down for 32 steps, doubling to 512.
    Shadow scores that would have gained 4 tokens at the same price lift that, each time in a row
    twice as many; drafts that gain 8 tokens live clear the record."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[int, _Account] = OrderedDict()
        self.down: set[int] = set()
        """Requests that are stood down now."""

    def record(self, request: int, drafted: int, accepted: int, price: float) -> None:
        account = self._accounts.get(request)
        if account is None:
            account = self._accounts[request] = _Account()
            if len(self._accounts) > MAX_REQUESTS:
                self.down.discard(self._accounts.popitem(last=False)[0])
        account.price = price
        account.drafted += drafted
        gain = accepted - price * drafted
        account.net = min(account.net + gain, REQUEST_CREDIT)
        account.square += gain * gain
        if account.net == REQUEST_CREDIT:
            account.dwell = REQUEST_DWELL
            account.square = 0.0
        doubt = math.sqrt(account.square)
        if account.drafted >= REQUEST_TRIAL and account.net + doubt < -REQUEST_LOSS:
            account.left = account.dwell
            self.down.add(request)
            account.dwell = min(2 * account.dwell, REQUEST_LONGEST)
            account.net = account.square = 0.0
            account.drafted = 0

    def shadow(self, request: int, accepted: int) -> None:
        """A shadow score of a request that may be stood down. The one row past the accepted ones
        is charged too: no plan stops exactly at the first rejection."""
        account = self._accounts.get(request)
        if account is None or account.left == 0:
            return
        account.net = max(account.net + accepted - account.price * (accepted + 1), 0.0)
        if account.net > REQUEST_LOSS * account.dwell / (2 * REQUEST_DWELL):
            account.left = 0
            self.down.discard(request)
            account.net = 0.0

    def blocks(self, request: int) -> bool:
        """Whether the request is stood down; counts one step of its dwell."""
        account = self._accounts.get(request)
        if account is None or account.left == 0:
            return False
        account.left -= 1
        if account.left == 0:
            self.down.discard(request)
        return True

    def forget(self, request: int) -> None:
        self._accounts.pop(request, None)
        self.down.discard(request)
