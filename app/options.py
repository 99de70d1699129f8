"""The options of every command. Names the function that runs it, and imports none of them."""

from __future__ import annotations

import argparse
from typing import Any

from app import package_version
from app.arguments import address, group, leaf, positive, server_url
from app.bench.options import add_bench
from app.settings import FIELDS
from app.simulate.options import add_simulate
from app.train_options import add_train

SECRET = ("admin_key", "console_key")
"""Settings that come from the environment only: options show in the process list."""


def build_parser() -> argparse.ArgumentParser:
    """Parsed options carry `run`, "module:function" of the command."""
    parser = argparse.ArgumentParser(
        prog="paceline",
        description="Serve a language model with speculative decoding that adapts to the load.",
        allow_abbrev=False,  # an abbreviated --key would slip past what masks it
        epilog="Each option of serve and up is also a variable: --data-dir is PACELINE_DATA_DIR.",
    )
    parser.add_argument("--version", action="version", version=f"paceline {package_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    every = [name for name in FIELDS if name not in SECRET]
    leaf(commands, "up", "set up and run API and console together", "app.up:main", every)
    leaf(commands, "serve", "run the API", "app.serve:main", every)
    add_ui(commands)
    add_chat(commands)
    add_bench(commands, add_client)
    add_simulate(commands, add_client)
    add_model(commands)
    add_corpus(commands)
    add_drafter(commands)
    add_train(commands)
    add_keys(commands)
    add_database(commands)
    leaf(commands, "version", "print the version", "app.options:print_version")
    return parser


def print_version(options: argparse.Namespace) -> int:
    print(package_version())
    return 0


def add_client(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        type=address,
        default=server_url(),
        help="the server (default: %(default)s, of PACELINE_HOST and PACELINE_PORT)",
    )
    parser.add_argument(
        "--key", help="API key (default: PACELINE_API_KEY, else PACELINE_ADMIN_KEY)"
    )


def add_ui(commands: Any) -> None:
    ui = leaf(commands, "ui", "run the console for a running API", "app.console:main")
    ui.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    ui.add_argument("--port", help="port (default: PACELINE_UI_PORT, else 8501)")
    ui.add_argument("--api-url", help=f"the API (default: PACELINE_API_URL, else {server_url()})")
    ui.add_argument("--public-api-url", help="the API's address as browsers reach it")


def add_chat(commands: Any) -> None:
    chat = leaf(commands, "chat", "talk to the model in the terminal", "app.chat:main")
    add_client(chat)
    chat.add_argument("--system", help="instructions for the model")
    chat.add_argument(
        "--max-tokens", type=positive, default=512, help="per answer (default: %(default)s)"
    )
    chat.add_argument(
        "--temperature", type=float, default=0.7, help="0 is greedy (default: %(default)s)"
    )
    chat.add_argument(
        "--mode", default="auto", help="none, auto, or a drafter, optionally with D: ngram:8"
    )


def add_model(commands: Any) -> None:
    actions = group(commands, "model", "the model that is served")
    fetch = "download, check and convert the embedded model"
    leaf(actions, "fetch", fetch, "app.model:main_fetch", ("cache_dir",))
    show = "print which model would be served, and from where"
    leaf(actions, "show", show, "app.model:main_show", ("model", "served_name", "cache_dir"))


def add_corpus(commands: Any) -> None:
    actions = group(commands, "corpus", "texts that drafters may copy from, in a running server")
    text = "upload a file and wait until it is indexed"
    load = leaf(actions, "load", text, "app.corpus:load")
    load.add_argument("name", help="1 to 64 of A-Z a-z 0-9 . _ -; what has it is replaced")
    load.add_argument(
        "file", help=".txt, .jsonl with text or token_ids, or .npz with tokens and offsets"
    )
    add_client(load)
    add_client(leaf(actions, "list", "list them, and how far each is", "app.corpus:show"))
    remove = leaf(actions, "remove", "remove one", "app.corpus:remove")
    remove.add_argument("name", help="as `paceline corpus list` shows it")
    add_client(remove)


def add_drafter(commands: Any) -> None:
    actions = group(commands, "drafter", "what drafts in a running server")
    add_client(leaf(actions, "list", "list them, with memory and source", "app.drafter:show"))
    text = "load one that has a model of its own, and wait until it drafts"
    load = leaf(actions, "load", text, "app.drafter:load")
    load.add_argument("name", help="mtp or draft_model")
    load.add_argument(
        "source",
        nargs="?",
        default="auto",
        help="a folder on the server, for draft_model also a Hugging Face id, or auto: what ships "
        "for the served model (default: %(default)s)",
    )
    load.add_argument(
        "--dry-run", action="store_true", help="only print the memory that it would take"
    )
    add_client(load)
    unload = leaf(actions, "unload", "take one out of the memory", "app.drafter:unload")
    unload.add_argument("name", help="mtp or draft_model")
    add_client(unload)


def add_keys(commands: Any) -> None:
    actions = group(commands, "keys", "API keys, directly in the database of a local server")
    where = ("data_dir", "database_url")
    create = leaf(actions, "create", "make a key and print it once", "app.keys:create", where)
    create.add_argument("name", help="what the key is for")
    create.add_argument(
        "--role",
        default="inference",
        choices=("admin", "operator", "inference"),
        help="what the key may do (default: %(default)s)",
    )
    create.add_argument("--days", type=positive, help="days until it expires (default: never)")
    leaf(actions, "list", "list the keys", "app.keys:show", where)
    revoke = leaf(actions, "revoke", "revoke a key", "app.keys:revoke", where)
    revoke.add_argument("id", help="the key's id, as `paceline keys list` shows it")


def add_database(commands: Any) -> None:
    actions = group(commands, "db", "the database schema")
    where = ("data_dir", "database_url")
    leaf(actions, "upgrade", "bring the schema up to date", "app.schema:upgrade", where)
    down = leaf(
        actions, "downgrade", "go back, with the data of what goes", "app.schema:downgrade", where
    )
    down.add_argument("revision", help="revision to go back to; base for an empty database")
    leaf(actions, "current", "print the schema's revision", "app.schema:current", where)
