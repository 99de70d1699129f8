"""`paceline bench compare`: other engines of this machine beside ours, batch by batch in turn."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from app import model
from app.bench import machine, report
from app.bench.arms import Arm, base_of, own_arms
from app.bench.client import Run
from app.bench.command import server_state
from app.bench.finish import finish, output_files
from app.bench.local import local_server, serving
from app.bench.peers.process import Peer, PeerError, Setup, Wanted, known_peers, wanted
from app.bench.prompts import read_prompts
from app.bench.publish import publishable
from app.bench.result import Result
from app.bench.running import client_of
from app.bench.turns import Engine, Ours, Turns, left_out, token_ids
from app.bench.workloads import Prompt
from app.failures import SettingsError
from app.progress import Bars
from app.remote import served_model
from app.settings import Settings, settings_of


def main(options: argparse.Namespace) -> int:
    files = output_files(options)
    prompts = read_prompts(options.prompts, options.limit, options.categories)
    if len(prompts) < max(options.concurrency):
        raise SettingsError(
            f"--concurrency {max(options.concurrency)} needs as many prompts; there are "
            f"{len(prompts)}."
        )
    peers = [wanted(given, sys.executable) for given in options.peer or known_peers()]
    rest = left_out(len(prompts), options.concurrency)
    settings = settings_of(options)
    described = machine.describe()
    started = time.time()
    runs: list[Run] = []
    told: dict[str, str] = {}
    interrupted = False
    with Bars(Console(stderr=True)) as bars, tempfile.TemporaryDirectory() as folder:
        source = model_source(settings, bars)
        gguf = llama_file(options, source, peers, Path(folder), told)
        peers = [peer for peer in peers if peer.name not in told]
        with local_server(serving(settings), lambda *now: bars.update("server", *now)) as local:
            arms = own_arms(options.modes, local.url, local.key)
            name = served_model(local.url, local.key)
            arms = [msgspec.structs.replace(arm, model=name) for arm in arms]
            state = server_state(arms[0]) or {}
            ours = state.get("model") or {}
            dtype, threads = ours.get("dtype", "float32"), ours.get("threads", settings.threads)
            setups = {
                peer.name: Setup(
                    source, dtype, threads, peer.variant, gguf, options.assistant or ""
                )
                for peer in peers
            }
            work = compare(arms, peers, setups, prompts, options, runs, told, bars)
            try:
                asyncio.run(work)
            except KeyboardInterrupt:
                interrupted = True
    base = base_of([arm.name for arm in arms], None)
    result = Result(
        kind="compare",
        command=["paceline", *publishable(sys.argv[1:])],
        time=started,
        machine=described,
        server=state,
        settings={
            "peers": told,
            "modes": options.modes,
            "concurrency": options.concurrency,
            "max_tokens": options.max_tokens,
            "repeat": options.repeat,
            "dtype": dtype,
            "threads": threads,
            "prompts": Path(options.prompts).name,
            "prompts_used": len(prompts) - min(rest.get(n, 0) for n in options.concurrency),
            "left_out": rest,
            "interrupted": interrupted,
        },
        base=base,
        rows=report.rows(runs, base, by_category=False),
        runs=runs,
    )
    code = finish(result, files, interrupted)
    for size, count in rest.items():
        print(
            f"{size} at once: the last {count} of {len(prompts)} prompts make no whole batch and "
            "were left out."
        )
    for name, text in told.items():
        print(f"{name}: {text}")
    return code


def model_source(settings: Settings, bars: Bars) -> str:
    """What the peers load: the folder of the embedded model, else what --model says."""
    if settings.model != "embedded":
        return settings.model
    return model.fetch(settings, lambda done, text: bars.update("model", done, text))


def llama_file(
    options: argparse.Namespace,
    source: str,
    peers: Sequence[Wanted],
    folder: Path,
    told: dict[str, str],
) -> str:
    """The file that llama.cpp loads, made when none was given; "" and a word in `told` when it
    cannot be, or the peer is not wanted."""
    mine = [peer for peer in peers if peer.engine == "llama.cpp"]
    if not mine or options.gguf:
        return options.gguf or ""
    missing = [peer for peer in mine if not has_module(peer.python, "llama_cpp")]
    told |= {peer.name: "skipped, not installed: llama_cpp" for peer in missing}
    if len(missing) == len(mine):
        return ""
    out = folder / "model.bf16.gguf"
    command = [sys.executable, "-m", "app.bench.peers.gguf_file", source, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return str(out)
    why = (done.stderr.strip() or "no message").split("\n")[-1]
    told |= {peer.name: f"skipped, no GGUF file: {why}" for peer in mine}
    return ""


def has_module(python: str, name: str) -> bool:
    """Whether an interpreter finds a module, without importing it."""
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({name!r}) is None)"
    with contextlib.suppress(OSError):
        return subprocess.run([python, "-c", code], check=False).returncode == 0
    return False


async def compare(
    arms: Sequence[Arm],
    peers: Sequence[Wanted],
    setups: Mapping[str, Setup],
    prompts: Sequence[Prompt],
    options: argparse.Namespace,
    runs: list[Run],
    told: dict[str, str],
    bars: Bars,
) -> None:
    """Load every peer that is there and run the batches. told: by peer, what it is, or why it was
    skipped or dropped."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(client_of(arms[0]))
        ids = [await token_ids(client, arms[0].model, prompt) for prompt in prompts]
        salt = secrets.token_hex(4)
        engines: dict[str, Engine] = {arm.name: Ours(arm, client, salt) for arm in arms}
        for number, wish in enumerate(peers):
            bars.update("peers", number / len(peers), f"loading {wish.name}")
            if wish.variant == "assisted" and not options.assistant:
                told[wish.name] = "skipped: give --assistant"
                continue
            try:
                peer = await Peer.start(wish, setups[wish.name])
            except PeerError as error:
                told[wish.name] = f"skipped, {error}"
                continue
            stack.push_async_callback(peer.stop)
            told[wish.name] = peer.described
            engines[peer.name] = peer
        await Turns(engines, prompts, ids, options, told).run(runs, bars)
