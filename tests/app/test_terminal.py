"""`paceline chat` over the scripted engine: its instructions and its Ctrl-C."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import threading

from rich.console import Console

from app.chat import show_answer
from tests.app.conftest import Api, eventually
from tests.app.test_responses import create, socket
from tests.conftest import ROOT, clean_environment


def test_the_instructions_hold_for_every_turn(api: Api):
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "chat", "--url", api.url, "--system", "be brief"],
        cwd=ROOT,
        env=clean_environment(PACELINE_API_KEY=api.admin_key),
        input="echo one\necho two\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("[system:be brief] [user:echo one]")
    assert second.startswith("[system:be brief] [user:echo one]")
    assert "[user:echo two]" in second


def test_ctrl_c_ends_an_answer_that_still_waits(api: Api):
    with socket(api) as connection:
        create(connection, "queued")
        eventually(lambda: api.service.engine.active)
        threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
        response = show_answer(connection, Console(file=io.StringIO()))
    assert response is not None
    assert response.startswith("resp_")
    api.idle()
