"""An API over a scripted engine for the tests of the console's pages."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.app.conftest import Api, running_api


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Generator[Api]:
    """One for the tests of a file, which put back what they change."""
    with running_api(tmp_path_factory.mktemp("console")) as running:
        running.ready()
        yield running
