"""Runs one step on the device: a single target forward, then the chain, choose and accept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from engine.attention import Attention
from engine.batch import Batch, Chunk, pack
from engine.chain import Chain
from engine.device import Device, Event
from engine.drafters.base import Reads
from engine.logprobs import Scores, Span, TokenScore, prompt_spans, score, score_prompts
from engine.rejection import proposals
from engine.sampling import choose
from engine.shape import Model, Tapped
from engine.verify import accept


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Scores of the prompt tokens from position `first` on."""

    first: int
    scores: list[TokenScore]

    @property
    def sound(self) -> bool:
        return not any(math.isnan(one.logprob) for one in self.scores)


@dataclass(frozen=True, slots=True)
class Verified:
    """What the target says of one chunk.

    tokens: its token at each of the 1 + D wanted rows, empty when none was wanted. accepted: how
    many drafts. bad: the first of the rows up to the first mismatch that gives no token, None when
    all do; the drafts before it are accepted. closed: of that row, the logits were finite, but the
    request's own masks left nothing. chances: of each draft to be accepted given those before it,
    where its tokens are drawn without a seed; else empty. scores: of tokens, when asked for.
    prompt: of the prompt tokens that the chunk's rows predict, when asked for; unsound ones make
    row 0 bad."""

    request: int
    tokens: list[int]
    accepted: int
    bad: int | None = None
    closed: bool = False
    chances: tuple[float, ...] = ()
    scores: list[TokenScore] | None = None
    prompt: PromptScores | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """A step's results on their way to the host. tokens int64 [R], accepted int64 [C], sound bool
    [R]; raw_sound bool [R]: the same before the chain, None when no chain ran; chances float32 [N]:
    of the drafts that the rows `proposed` judge, see Chosen; scores: of the chunks that asked, in
    order; prompts: of the tokens of spans, in order."""

    tokens: Tensor
    accepted: Tensor
    sound: Tensor
    raw_sound: Tensor | None
    proposed: list[int]
    chances: Tensor | None
    scores: Scores | None
    spans: list[Span]
    prompts: Scores | None


class Step:
    """A step in flight. `result` waits for the device. Besides, Drawn.result does where somebody
    needs drafted tokens before that (engine/draft_models/drawn.py), and FlashInferAttention.plan
    for its last copy."""

    def __init__(self, batch: Batch, findings: Findings, done: Event) -> None:
        self.batch = batch
        self._findings = findings
        self._done = done

    def result(self) -> list[Verified]:
        """Wait for the device; one entry per chunk that is wanted or has prompt scores, in the
        batch's order."""
        self._done.synchronize()
        found = self._findings
        tokens, accepts, sound = (
            found.tokens.tolist(),
            found.accepted.tolist(),
            found.sound.tolist(),
        )
        raw_sound = sound if found.raw_sound is None else found.raw_sound.tolist()
        chances = {}
        if found.chances is not None:
            chances = dict(zip(found.proposed, found.chances.tolist(), strict=True))
        scores = self._scores()
        prompts = self._prompts()
        results: list[Verified] = []
        row = index = 0
        for place, chunk in enumerate(self.batch.chunks):
            prompt = prompts.get(place)
            if not chunk.wanted:
                if prompt is not None:
                    bad = None if prompt.sound else 0
                    results.append(Verified(chunk.request, [], 0, bad, prompt=prompt))
                continue
            accepted = accepts[index]
            end = row + chunk.drafted + 1
            computed = raw_sound[row:end]
            if prompt is not None and not prompt.sound:
                computed[0] = False
            # rows past the first mismatch do not matter
            counting = zip(computed[: accepted + 1], sound[row:end], strict=False)
            bad = next((place for place, both in enumerate(counting) if not all(both)), None)
            results.append(
                Verified(
                    request=chunk.request,
                    tokens=tokens[row:end],
                    accepted=accepted if bad is None else bad,
                    bad=bad,
                    closed=bad is not None and computed[bad],
                    chances=tuple([chances[at] for at in range(row, end - 1)])
                    if row in chances
                    else (),
                    scores=scores.get(index),
                    prompt=prompt,
                )
            )
            row, index = end, index + 1
        return results

    def _scores(self) -> dict[int, list[TokenScore]]:
        """Wanted chunk -> scores of its rows."""
        if self._findings.scores is None:
            return {}
        asked = [(i, c) for i, c in enumerate(self.batch.wanted_chunks) if c.logprobs is not None]
        rows = self._findings.scores.rows(
            [chunk.logprobs or 0 for _, chunk in asked for _ in range(chunk.drafted + 1)]
        )
        scores: dict[int, list[TokenScore]] = {}
        first = 0
        for index, chunk in asked:
            scores[index] = rows[first : first + chunk.drafted + 1]
            first += chunk.drafted + 1
        return scores

    def _prompts(self) -> dict[int, PromptScores]:
        """Chunk -> scores of the prompt tokens that its rows predict."""
        spans = self._findings.spans
        limits = [span.chunk.prompt_logprobs or 0 for span in spans for _ in span.tokens]
        rows = [] if self._findings.prompts is None else self._findings.prompts.rows(limits)
        prompts: dict[int, PromptScores] = {}
        used = 0
        for span in spans:
            part = rows[used : used + len(span.tokens)]
            prompts[span.place] = PromptScores(span.chunk.start + 1, part)
            used += len(part)
        return prompts


class Executor:
    """Owns the model and the attention. forwards counts target forwards. readers: who is given
    the hidden states of every forward, which the model must be able to tap where they read."""

    def __init__(
        self, decoder: Model, attention: Attention, device: Device, page_size: int
    ) -> None:
        self.decoder = decoder
        self.attention = attention
        self.device = device
        self.page_size = page_size
        self.forwards = 0
        self.readers: list[Reads] = []
        self._chain = Chain(device)
        self._generator = torch.Generator(device=device.torch_device)
        self._generator.seed()

    def verify(self, chunks: Sequence[Chunk]) -> Step:
        """Enqueue the forward over every row, the choice of target tokens and the acceptance."""
        device = self.device
        batch = pack(chunks, device, self.page_size)
        hidden = self._forward(batch)
        spans = prompt_spans(batch)
        prompts = self._score_prompts(spans, hidden)
        logits = self.decoder.logits(hidden.index_select(0, batch.wanted_rows)).contiguous()
        wanted, groups = batch.wanted_chunks, batch.groups
        asked = [
            row
            for chunk, group in zip(wanted, groups, strict=True)
            if chunk.logprobs is not None
            for row in group
        ]
        scored = device.tensor(asked, torch.int64) if asked else None
        raw = None if scored is None else logits.index_select(0, scored)  # the chain changes it
        raw_sound = self._chain.apply(logits, wanted, groups)
        proposed = proposals(wanted, groups, batch.next_drafts, device)
        tokens, sound, chances = choose(
            logits, batch.row_draws, batch.row_positions, device, self._generator, proposed
        )
        accepted = accept(tokens, batch.next_drafts, batch.leading)
        scores = None
        if raw is not None and scored is not None:
            most = max(chunk.logprobs or 0 for chunk in wanted)
            scores = score(raw, tokens.index_select(0, scored), most).to_host(device)
        findings = Findings(
            tokens=device.to_host(tokens),
            accepted=device.to_host(accepted),
            sound=device.to_host(sound),
            raw_sound=None if raw_sound is None else device.to_host(raw_sound),
            proposed=[] if proposed is None else proposed.rows,
            chances=None if chances is None else device.to_host(chances),
            scores=scores,
            spans=spans,
            prompts=None if prompts is None else prompts.to_host(device),
        )
        return Step(batch, findings, device.record())

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers whose input is read, see Reads."""
        return tuple(sorted({tap for reader in self.readers for tap in reader.taps}))

    def forget(self, request: int) -> None:
        """Drop what is kept of a request that is over."""
        self._chain.forget(request)

    def _forward(self, batch: Batch) -> Tensor:
        """The target's hidden states of every row, of which the readers get what they read."""
        decoder, attend = self.decoder, self.attention.plan(batch)
        taps = self.taps if self.readers else ()
        last = (decoder.shape.layers,)
        if taps in ((), last):
            hidden = features = decoder.forward(batch.ids, batch.positions, attend)
        else:
            tapped = cast(Tapped, decoder)
            hidden, features = tapped.features(batch.ids, batch.positions, attend, taps)
        self.forwards += 1
        for reader in self.readers:
            reader.read(batch, _columns(features, taps, reader.taps))
        return hidden

    def _score_prompts(self, spans: list[Span], hidden: Tensor) -> Scores | None:
        if not spans:
            return None
        vocabulary = self.decoder.shape.vocabulary
        return score_prompts(spans, hidden, self.decoder.logits, vocabulary, self.device)


def _columns(features: Tensor, taps: tuple[int, ...], wanted: tuple[int, ...]) -> Tensor:
    """Of features [T, len(taps) * d] those of the wanted taps, in their order."""
    if taps == wanted:
        return features
    parts = features.unflatten(1, (len(taps), -1))
    return torch.cat([parts[:, taps.index(tap)] for tap in wanted], dim=1)
