"""A target small enough to enumerate its law, run through the executor many requests at a time.

The next token's logits depend on the last token and its position. What a request asks for on top
(penalties, bias, filters, …) is written down here a second time, plainly and in float64."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engine.batch import Chunk
from engine.device import Device
from engine.draw import Draw
from engine.executor import Executor
from engine.shape import Attend, Shape
from tests.engine.scripted import NoAttention

VOCABULARY = 5
DEPTH = 3
PROMPT: tuple[int, ...] = (1,)
CPU = Device(torch.device("cpu"), torch.float32)


def target_logits() -> Tensor:
    """float32 [V, position, V]: a law that differs by last token and position, with one
    impossible token in a row."""
    token, place, after = torch.meshgrid(
        torch.arange(VOCABULARY), torch.arange(8), torch.arange(VOCABULARY), indexing="ij"
    )
    table = torch.sin(1.7 * token + 0.9 * place + 2.3 * after) * 1.5
    table[2, :, 4] = float("-inf")
    return table


class TableDecoder:
    """Stands where the decoder stands: logits looked up in a table [V, position, V]."""

    def __init__(self, table: Tensor) -> None:
        self.shape = Shape(1, 1, 1, 8, 8, table.shape[-1], table.shape[1])
        self._table = table

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        return torch.stack((ids, positions), dim=1)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._table[hidden[:, 0], hidden[:, 1]]


def executor(table: Tensor, seed: int = 5) -> Executor:
    decoder: Any = TableDecoder(table)
    made = Executor(decoder, NoAttention(), CPU, 16)
    made._generator.manual_seed(seed)
    return made


@dataclass
class Drafts:
    """Of B requests: tokens int64 [B, D]; q float32 [B, D, V] or None; lengths of each [B]."""

    tokens: Tensor
    q: Tensor | None
    lengths: list[int]


Propose = Callable[[int, Tensor, Tensor, int], Drafts | None]
"""(step, last tokens [B], their positions [B], most drafts) -> drafts, or None for none."""


@dataclass
class Sample:
    """outputs: how often each came out. drafted and accepted: of the first draft position of the
    first step."""

    outputs: Counter[tuple[int, ...]] = field(default_factory=Counter)
    drafted: int = 0
    accepted: int = 0


def drawn_from(table: Tensor, seed: int, confident: float = 0.0) -> Propose:
    """A drafter that draws from softmax(table), and stops before a position where it is not
    confident: its largest q is below the limit, known before anything is drawn there."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    laws = table.softmax(-1)

    def propose(step: int, last: Tensor, places: Tensor, most: int) -> Drafts:
        tokens: list[Tensor] = []
        q: list[Tensor] = []
        going = torch.ones_like(last)
        lengths = torch.zeros_like(last)
        for ahead in range(most):
            law = laws[last, places + ahead]
            going = going * (law.amax(-1) >= confident)
            lengths += going
            last = torch.multinomial(law, 1, generator=generator).squeeze(1)
            tokens.append(last)
            q.append(law)
        return Drafts(torch.stack(tokens, 1), torch.stack(q, 1), lengths.tolist())

    return propose


def one_hot(table: Tensor) -> Propose:
    """A drafter that drafts the likeliest token and carries no q."""
    best = table.argmax(-1)

    def propose(step: int, last: Tensor, places: Tensor, most: int) -> Drafts:
        tokens: list[Tensor] = []
        for ahead in range(most):
            last = best[last, places + ahead]
            tokens.append(last)
        return Drafts(torch.stack(tokens, 1), None, [most] * len(last))

    return propose


def sample(
    target: Executor,
    total: int,
    propose: Propose | None,
    draw: Callable[[int], Draw],
    depth: int = DEPTH,
    batch: int = 10_000,
) -> Sample:
    """Run `total` requests to `depth` tokens each. draw(i): of request i."""
    with _no_collections():
        return _sample(target, total, propose, draw, depth, batch)


@contextlib.contextmanager
def _no_collections() -> Generator[None]:
    """Hundreds of thousands of small objects and no cycles: collecting takes half of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _sample(
    target: Executor,
    total: int,
    propose: Propose | None,
    draw: Callable[[int], Draw],
    depth: int,
    batch: int,
) -> Sample:
    found = Sample()
    for start in range(0, total, batch):
        live = [(list(PROMPT), draw(i), i + 1) for i in range(start, min(start + batch, total))]
        step = 0
        while live:
            chunks = _chunks(live, propose, depth, step)
            if step == 0:
                found.drafted += sum(chunk.drafted > 0 for chunk in chunks)
            left = []
            for request, chunk, result in zip(
                live, chunks, target.verify(chunks).result(), strict=True
            ):
                assert result.bad is None
                if step == 0:
                    found.accepted += result.accepted > 0
                history = request[0]
                history.extend(result.tokens[: result.accepted + 1])
                if len(history) > depth:
                    found.outputs[tuple(history[1 : depth + 1])] += 1
                    target.forget(chunk.request)
                else:
                    left.append(request)
            live = left
            step += 1
    return found


def _chunks(
    live: Sequence[tuple[list[int], Draw, int]], propose: Propose | None, depth: int, step: int
) -> list[Chunk]:
    """One verify chunk per request, with at most as many drafts as it may still commit, less one:
    requests that may draft equally many draft together."""
    rooms = [depth - len(history) for history, _, _ in live]
    drafts: dict[int, tuple[list[int], Tensor | None]] = {}
    for room in sorted(set(rooms)):
        members = [i for i, one in enumerate(rooms) if one == room]
        if propose is None or room < 1:
            continue
        last = torch.tensor([live[i][0][-1] for i in members])
        places = torch.tensor([len(live[i][0]) - 1 for i in members])
        made = propose(step, last, places, room)
        if made is None:
            continue
        tokens = made.tokens.tolist()
        laws = [None] * len(members) if made.q is None else made.q.unbind(0)
        for i, ids, law, length in zip(members, tokens, laws, made.lengths, strict=True):
            if length:
                drafts[i] = ids[:length], None if law is None else law[:length]
    chunks: list[Chunk] = []
    for i, (history, draw, request) in enumerate(live):
        ids, q = drafts.get(i, ([], None))
        chunks.append(
            Chunk(
                request=request,
                ids=[history[-1], *ids],
                start=len(history) - 1,
                pages=(0,),
                draw=draw,
                drafted=len(ids),
                q=q,
                history=history,
                prompt_length=len(PROMPT),
            )
        )
    return chunks


# --- the law, written down plainly --------------------------------------------------------------


def law(table: Tensor, draw: Draw, depth: int = DEPTH) -> dict[tuple[int, ...], float]:
    """Probability of every output of `depth` tokens."""
    found: dict[tuple[int, ...], float] = {}
    for output in itertools.product(range(table.shape[-1]), repeat=depth):
        chance = 1.0
        for place, token in enumerate(output):
            chance *= next_law(table, draw, output[:place])[token]
        found[output] = chance
    return found


def next_law(table: Tensor, draw: Draw, output: Sequence[int]) -> list[float]:
    """Probabilities of the token after `output`, temperature above 0."""
    history = [*PROMPT, *output]
    row = processed(table[history[-1], len(history) - 1].double().tolist(), draw, output)
    row = [value / draw.temperature for value in row]
    top = max(row)
    if draw.min_p > 0:
        row = [v if v >= top + math.log(draw.min_p) else -math.inf for v in row]
    if draw.top_k:
        limit = sorted(row, reverse=True)[min(draw.top_k, len(row)) - 1]
        row = [v if v >= limit else -math.inf for v in row]
    weights = [math.exp(v - top) for v in row]
    if draw.top_p < 1.0:
        total, mass, kept = sum(weights), 0.0, set[int]()
        for token in sorted(range(len(row)), key=lambda t: -weights[t]):
            if mass >= draw.top_p * total:
                break
            kept.add(token)
            mass += weights[token]
        weights = [w if t in kept else 0.0 for t, w in enumerate(weights)]
    return [weight / sum(weights) for weight in weights]


def processed(
    row: list[float], draw: Draw, output: Sequence[int], prompt: Sequence[int] = PROMPT
) -> list[float]:
    """Logits after masks, bias and penalties."""
    row = list(row)
    barred: set[int] = set()
    if draw.allowed_token_ids is not None:
        barred |= set(range(len(row))) - set(draw.allowed_token_ids)
    for word in draw.bad_words:
        head = list(word[:-1])
        if not head or list(output[-len(head) :]) == head:
            barred.add(word[-1])
    if len(output) < draw.min_tokens:
        barred |= set(draw.end_ids)
    for token, bias in draw.logit_bias:
        row[token] += bias
    for token in range(len(row)):
        count = sum(one == token for one in output)
        if count or token in prompt:
            penalty = draw.repetition_penalty
            row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
        row[token] -= draw.frequency_penalty * count + draw.presence_penalty * (count > 0)
    return [-math.inf if token in barred else value for token, value in enumerate(row)]


def chi_square_bound(degrees: int) -> float:
    """99.999 % point, by the Wilson-Hilferty approximation."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 4.265 * math.sqrt(spread)) ** 3


def misfit(outputs: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """The worst chi-square over its bound, of the outputs as a whole and of every position; more
    than 1 when the outputs do not follow the law. Impossible outputs are infinitely wrong."""
    worst = _misfit(outputs, expected)
    for place in range(len(next(iter(expected)))):
        counts: Counter[tuple[int, ...]] = Counter()
        chances: dict[tuple[int, ...], float] = {}
        for output, count in outputs.items():
            counts[output[place : place + 1]] += count
        for output, chance in expected.items():
            token = output[place : place + 1]
            chances[token] = chances.get(token, 0.0) + chance
        worst = max(worst, _misfit(counts, chances))
    return worst


def _misfit(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    if any(expected[output] == 0.0 for output in counts):
        return math.inf
    total = counts.total()
    statistic = rest = found = 0.0
    cells = 0
    for output, chance in expected.items():
        if chance * total >= 5:
            statistic += (counts[output] - chance * total) ** 2 / (chance * total)
            cells += 1
        else:  # rare outputs are one cell together
            rest += chance * total
            found += counts[output]
    if rest >= 5:
        statistic += (found - rest) ** 2 / rest
        cells += 1
    return statistic / chi_square_bound(cells - 1) if cells > 1 else 0.0
