"""`paceline drafter list` while the engine loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli import main
from tests.app.conftest import running_api


def test_a_server_that_still_loads_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_api(tmp_path, model="late", cache_dir=str(tmp_path / "go")) as api:
        asked = ["drafter", "list", "--url", api.url, "--key", api.admin_key]
        assert main(asked) == 1
        told = capsys.readouterr()
        assert "source" not in told.out  # no header over nothing
        assert "paceline: No drafters yet: The engine is still loading." in told.err
        (tmp_path / "go").touch()
        api.ready()
        assert main(asked) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if line.startswith("mtp ")]
