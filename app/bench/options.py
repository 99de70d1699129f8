"""The options of `paceline bench` and of what it holds."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from app.arguments import counts, leaf, names, number, positive, whole

MODES = ("none", "ngram", "auto")
"""What is measured of our server when nothing is said."""
MOST_REPEATS = 1000
MOST_AT_ONCE = 4096
SERVING = ("model", "cache_dir", "dtype", "threads")
"""Settings of a server that a benchmark starts itself."""


def add_bench(commands: Any, add_client: Callable[[argparse.ArgumentParser], None]) -> None:
    """add_client adds --url and --key."""
    text = "measure running servers, modes side by side"
    bench = leaf(commands, "bench", text, "app.bench.command:main")
    add_client(bench)
    add_prompts(bench, 128)
    add_arms(bench)
    add_load(bench)
    add_measuring(bench)
    kinds = bench.add_subparsers(metavar="drafters | compare | disturb | start | suite | record")
    add_drafters(kinds)
    add_compare(kinds)
    add_disturb(kinds, add_client)
    add_start(kinds)
    add_suite(kinds)
    text = "store the rows of a result in a running server, for its console"
    record = leaf(kinds, "record", text, "app.bench.record:main")
    record.add_argument("file", help="what --json wrote")
    add_client(record)


def add_prompts(bench: argparse.ArgumentParser, max_tokens: int) -> None:
    """The options that all benchmarks have."""
    bench.add_argument(
        "--prompts",
        help="Spec-Bench, MT-Bench or SPEED-Bench (.jsonl, .parquet), ShareGPT (.json), a prompt a "
        "line (.txt), a folder of such files, or `adversarial`: random strings and hot creative "
        "texts",
    )
    bench.add_argument(
        "--limit", type=positive, help="this many prompts, spread over the categories"
    )
    bench.add_argument("--categories", type=names, default=(), help="only these: coding,summary")
    bench.add_argument(
        "--max-tokens",
        type=whole(1, 1 << 20),
        default=max_tokens,
        help="per answer (default: %(default)s)",
    )
    bench.add_argument("--json", metavar="OUT", help="write everything measured to this file")


def add_arms(bench: argparse.ArgumentParser) -> None:
    bench.add_argument(
        "--modes",
        type=names,
        default=(),
        help="of the server at --url: none (plain decoding), auto, or a drafter, with or "
        f"without D: none,ngram:8,auto (default: {','.join(MODES)}; with --arm: no modes)",
    )
    bench.add_argument(
        "--arm",
        action="append",
        default=[],
        metavar="NAME=URL[,MODEL]",
        help="another OpenAI-compatible server, may be repeated; its key is in the environment as "
        "PACELINE_ARM_KEY_NAME",
    )
    bench.add_argument("--base", help="what others are compared with (default: none, else first)")


def add_load(bench: argparse.ArgumentParser) -> None:
    bench.add_argument(
        "--concurrency", type=at_once, default=(1,), help="requests at once, such as 1,8"
    )
    bench.add_argument(
        "--rate", type=rates, default=(), help="or Poisson arrivals, requests a second: 0.5,2"
    )
    bench.add_argument(
        "--trace", metavar="CSV", help="or arrivals and lengths of an Azure LLM inference trace"
    )
    bench.add_argument(
        "--trace-speed", type=number(0.001, 1000), default=1.0, help="2 replays it twice as fast"
    )
    bench.add_argument(
        "--trace-tokens",
        type=number(0.001, 10),
        default=1.0,
        help="times the trace's context and answer lengths",
    )
    bench.add_argument(
        "--phase",
        action="append",
        default=[],
        metavar="FIELD=VALUE,…",
        help="or phases one after the other: name=chat,requests=20,categories=qa+rag,concurrency=8",
    )
    bench.add_argument("--phases", metavar="TOML", help="phases from a file of [[phase]] tables")


def add_measuring(bench: argparse.ArgumentParser) -> None:
    bench.add_argument(
        "--pool-below",
        type=whole(0, 1 << 20),
        default=0,
        metavar="PROMPTS",
        help="categories with fewer prompts in the file count as one",
    )
    bench.add_argument(
        "--repeat",
        type=whole(1, MOST_REPEATS),
        default=1,
        help="times each arm runs (default: %(default)s)",
    )
    bench.add_argument(
        "--warm-up",
        type=whole(1, 1000),
        default=1,
        help="short requests to each arm before (default: %(default)s)",
    )
    bench.add_argument(
        "--temperature", type=number(0, 2), default=0.0, help="0 is greedy (default: %(default)s)"
    )
    bench.add_argument(
        "--ignore-eos", action="store_true", help="every answer has --max-tokens tokens"
    )
    bench.add_argument(
        "--all-turns", action="store_true", help="also the later turns of each conversation"
    )
    bench.add_argument(
        "--tpot-ms", type=number(0.01, 60_000), help="target of goodput: milliseconds per token"
    )
    bench.add_argument(
        "--positions",
        action="store_true",
        help="acceptance by position and drafter; asks our server where each token came from",
    )
    bench.add_argument(
        "--stall-s",
        type=number(0.1, 3600),
        default=60.0,
        help="a request fails when nothing comes for so long (default: %(default)s)",
    )
    bench.add_argument(
        "--record",
        action="store_true",
        help="store the rows in the server at --url, for its console; the key is an operator's",
    )
    add_files(bench)


def add_files(bench: argparse.ArgumentParser) -> None:
    bench.add_argument("--csv", metavar="OUT", help="write the rows to this file")
    bench.add_argument("--html", metavar="OUT", help="write a page with charts to this file")


def add_drafters(kinds: Any) -> None:
    text = "measure the drafters, in an engine of their own"
    settings = (*SERVING, "suffix_memory_mb", "max_draft_length")
    settings += ("mtp", "draft_model", "draft_vocabulary")
    bench = leaf(kinds, "drafters", text, "app.bench.drafters:main", settings)
    add_prompts(bench, 160)
    bench.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="COLUMN",
        help="only this column of the table, such as mix or 'suffix or mtp, warm'; may be repeated",
    )
    bench.add_argument(
        "--no-calls",
        action="store_true",
        help="only the table: no repeated prompts, no share of drafting, no timed calls",
    )
    bench.add_argument(
        "--corpus",
        help="texts for the warm runs and the timed calls, a file as `paceline corpus load` takes",
    )
    bench.add_argument(
        "--concurrency", type=positive, default=8, help="requests at once (default: %(default)s)"
    )
    bench.add_argument(
        "--rounds",
        type=positive,
        default=10,
        help="times that ten prompts are asked again (default: %(default)s)",
    )
    bench.add_argument(
        "--model-length",
        type=positive,
        default=3,
        help="tokens that an MTP head or a draft model drafts alone (default: %(default)s)",
    )


def add_compare(kinds: Any) -> None:
    text = "measure other engines on this machine beside ours"
    bench = leaf(kinds, "compare", text, "app.bench.compare:main", SERVING)
    add_prompts(bench, 96)
    bench.add_argument(
        "--modes", type=names, default=("none", "auto"), help="of ours (default: none,auto)"
    )
    bench.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME[=PYTHON]",
        help="transformers, transformers+lookup, transformers+assisted, llama.cpp, "
        "llama.cpp+lookup, vllm or vllm+lookup, with the interpreter that has it (default: all, "
        "with this one); may be repeated",
    )
    bench.add_argument("--gguf", help="the file that llama.cpp loads (default: made in bfloat16)")
    bench.add_argument("--assistant", help="folder of the model for transformers+assisted")
    bench.add_argument(
        "--concurrency", type=at_once, default=(1,), help="requests at once, such as 1,8"
    )
    bench.add_argument(
        "--repeat",
        type=whole(1, MOST_REPEATS),
        default=1,
        help="times each arm runs (default: %(default)s)",
    )
    add_files(bench)


def add_disturb(kinds: Any, add_client: Callable[[argparse.ArgumentParser], None]) -> None:
    text = "load the cores mid-run and watch the server's cost table and plan follow"
    bench = leaf(kinds, "disturb", text, "app.bench.disturb:main")
    add_client(bench)
    add_prompts(bench, 256)
    bench.add_argument(
        "--modes", type=names, default=("none", "auto"), help="in turn (default: none,auto)"
    )
    bench.add_argument(
        "--concurrency",
        type=whole(1, MOST_AT_ONCE),
        default=4,
        help="requests at once (default: %(default)s)",
    )
    bench.add_argument(
        "--processes",
        type=whole(1, 4096),
        default=os.cpu_count() or 1,
        help="that spin in the middle (default: one a core, %(default)s here)",
    )
    bench.add_argument(
        "--quiet-s",
        type=number(1, 3600),
        default=30.0,
        help="seconds before and after (default: %(default)s)",
    )
    bench.add_argument(
        "--loaded-s",
        type=number(1, 3600),
        default=45.0,
        help="seconds in between (default: %(default)s)",
    )
    bench.add_argument(
        "--temperature", type=number(0, 2), default=0.0, help="0 is greedy (default: %(default)s)"
    )


def add_start(kinds: Any) -> None:
    text = "time from the start of a server to its first token"
    bench = leaf(kinds, "start", text, "app.bench.start:main", SERVING)
    bench.add_argument(
        "--repeat",
        type=whole(1, MOST_REPEATS),
        default=4,
        help="starts, after one that warms up (default: %(default)s)",
    )
    bench.add_argument("--json", metavar="OUT", help="write everything measured to this file")


def add_suite(kinds: Any) -> None:
    text = "run the experiments of docs/performance.md one after the other"
    suite = leaf(kinds, "suite", text, "app.bench.suite:main")
    suite.add_argument("--out", metavar="FOLDER", help="where the results go")
    suite.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="what the commands need: prompts=FILE, corpus=FILE, …; see --list",
    )
    suite.add_argument("--only", type=names, default=(), help="only these experiments")
    suite.add_argument(
        "--budget-min",
        type=number(0.1, 100_000),
        default=300.0,
        help="minutes for all together (default: %(default)s)",
    )
    suite.add_argument("--list", action="store_true", help="show the experiments and run none")


def at_once(text: str) -> tuple[int, ...]:
    found = counts(text)
    if max(found) > MOST_AT_ONCE:
        raise argparse.ArgumentTypeError(f"at most {MOST_AT_ONCE:,} requests at once")
    return tuple(dict.fromkeys(found))


def rates(text: str) -> tuple[float, ...]:
    parse = number(0.001, 10_000)
    return tuple(dict.fromkeys(parse(part) for part in names(text)))
