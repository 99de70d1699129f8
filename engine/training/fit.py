"""Fits an MTP head or a small draft model to what the target predicts; stops and resumes.

One process, or several under torchrun, each on its own share of the shards."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from engine.errors import StartError
from engine.trained import TargetFacts
from engine.training.fit_batches import Rows, batches
from engine.training.fit_module import Trained
from engine.training.fit_options import Options, products
from engine.training.fit_progress import Recent, Report, State, mend
from engine.training.fit_start import begin_with, build
from engine.training.fit_world import World
from engine.training.muon import Muon
from engine.training.shards import About, about_all, paths

Tell = Callable[[Report], None]


def fit(
    target: Path,
    facts: TargetFacts,
    shards: Path,
    draft_ids: Sequence[int],
    folder: Path,
    options: Options,
    tell: Tell,
    *,
    checkpoint_steps: int = 100,
) -> Trained:
    """Train and return the module; folder holds checkpoint.pt and curve.jsonl. facts: of the
    target. draft_ids: rising target ids that it may draft. Raises StartError when the data or the
    target do not fit."""
    world = World()
    options = options.on(world.device)
    files = paths(shards)
    about = about_all(files)
    device = world.device
    torch.manual_seed(options.seed)
    module = build(target, about, draft_ids, options).to(device)
    rates = _optimisers(module, options)
    folder.mkdir(parents=True, exist_ok=True)
    run = asdict(options) | _data(about, files, draft_ids) | {"processes": world.size}
    state = State(folder / "checkpoint.pt", run, world.rank)
    if not state.load(module, rates, device):
        if world.rank == 0:
            begin_with(module, files, about, facts, options)
        world.share(module)
    mine = files[world.rank :: world.size] or files
    begin = time.perf_counter()
    seen, recent = state.tokens, Recent(options.depth if options.kind == "mtp" else 1)
    if world.rank == 0:
        mend(folder / "curve.jsonl", state)
    with (folder / "curve.jsonl").open("a") as curve:
        while state.tokens < options.tokens:
            place = 0
            source = batches(
                mine, options.rows, options.context, options.depth, options.seed, state.epoch
            )
            for rows in source:
                place += 1
                if place <= state.place:
                    continue  # taken before the run was interrupted
                taught = world.total(rows.taught)
                _set_rates(rates, options, state.tokens)
                _step(module, rates, rows.to(device), options, world, recent)
                state.tokens += taught
                state.step, state.place = state.step + 1, place
                over = state.tokens >= options.tokens
                late = bool(options.seconds) and time.perf_counter() - begin > options.seconds
                if options.seconds:
                    late = world.told(late)
                if state.step % checkpoint_steps == 0 or over or late:
                    elapsed = time.perf_counter() - begin
                    report = recent.report(state, (state.tokens - seen) / elapsed)
                    places = world.gathered((state.epoch, state.place))
                    if world.rank == 0:
                        state.line = json.dumps(asdict(report))
                        state.save(module, rates, places)
                        curve.write(state.line + "\n")
                        curve.flush()
                        tell(report)
                if over or late:
                    return module
            if not place:
                raise StartError(
                    "training_data_missing", f"{shards} holds no answer of two tokens or more."
                )
            state.epoch, state.place = state.epoch + 1, 0
    return module


def _data(about: About, files: Sequence[Path], draft_ids: Sequence[int]) -> dict[str, object]:
    """What the run is trained on, by name."""
    return {
        "draft_ids": hashlib.sha256(json.dumps(list(draft_ids)).encode()).hexdigest(),
        "taps": list(about.taps),
        "hidden": about.hidden,
        "top": about.top,
        "tokenizer": about.target,
        "weights": about.weights,
        "template": about.template,
        "shards": [[path.name, path.stat().st_size] for path in files],
    }


def _step(
    module: nn.Module,
    rates: Sequence[torch.optim.Optimizer],
    rows: Rows,
    options: Options,
    world: World,
    recent: Recent,
) -> None:
    kind = rows.tokens.device.type
    half = options.precision == "bfloat16"
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=half):
        found = module(rows, options.depth)
    loss = torch.zeros((), device=rows.tokens.device)
    total = sum(options.decay**place for place in range(len(found)))
    for place, (taught, outputs, seen) in enumerate(found):
        share = options.decay**place / total
        loss = loss + share * taught.loss / taught.weight.clamp_min(1.0)
        if options.hidden_loss:
            own = rows.features.flatten(0, 1)[seen, -outputs.shape[-1] :]
            loss = loss + share * options.hidden_loss * F.smooth_l1_loss(
                outputs.float(), own.float()
            )
    for rate in rates:
        rate.zero_grad(set_to_none=True)
    loss.backward()
    world.average(module)
    nn.utils.clip_grad_norm_(module.parameters(), options.clip)
    for rate in rates:
        rate.step()
    recent.add(float(loss.detach()), [(int(one.agreed), one.rows) for one, _, _ in found])


def _optimisers(module: nn.Module, options: Options) -> list[torch.optim.Optimizer]:
    matrices = [one for one in module.parameters() if one.dim() == 2]
    others = [one for one in module.parameters() if one.dim() != 2]
    if not options.muon:
        return [
            torch.optim.AdamW([*matrices, *others], options.rate, (0.9, 0.95), weight_decay=0.0)
        ]
    return [
        Muon(matrices, options.rate, products(options)),
        torch.optim.AdamW(others, options.rate, (0.9, 0.95), weight_decay=0.0),
    ]


def _set_rates(rates: Sequence[torch.optim.Optimizer], options: Options, tokens: int) -> None:
    """Linear warm-up, then a cosine to a twentieth."""
    done = min(tokens / options.tokens, 1.0)
    factor = 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * done))
    if done < options.warm_up:
        factor *= (done + 1e-3) / options.warm_up
    for rate in rates:
        for group in rate.param_groups:
            group["lr"] = options.rate * factor
