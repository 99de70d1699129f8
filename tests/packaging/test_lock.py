"""The lock file: complete, hashed, without torch and without addresses."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

LOCK = (ROOT / "requirements.lock").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ENTRIES = [entry for entry in re.split(r"\n(?=[a-z])", LOCK) if re.match(r"[a-z]", entry)]
LOCKED = {
    canonicalize_name(match[1]): match[2]
    for entry in ENTRIES
    if (match := re.match(r"([\w.-]+)==([^\s;]+)", entry))
}
WANTED = [
    Requirement(text)
    for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"])
]


@pytest.mark.parametrize("wanted", WANTED, ids=lambda wanted: wanted.name)
def test_every_dependency_is_locked_at_a_version_that_is_allowed(wanted: Requirement) -> None:
    if wanted.name == "torch":
        assert "torch" not in LOCKED
        return
    version = LOCKED[canonicalize_name(wanted.name)]
    assert wanted.specifier.contains(version, prereleases=True), (wanted, version)


def test_every_entry_is_pinned_and_hashed() -> None:
    assert len(LOCKED) == len(ENTRIES)
    for entry in ENTRIES:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


def test_neither_torch_nor_cuda_packages_are_locked() -> None:
    unwanted = [
        name for name in LOCKED if name.startswith(("torch", "nvidia-", "triton", "cuda", "nccl"))
    ]
    assert unwanted == ["nvidia-ml-py"]  # plain Python that FlashInfer imports


def test_there_are_no_addresses_and_no_local_files() -> None:
    assert not re.search(r"https?:|file:|--index|--find-links|^-e|@ ", LOCK, re.MULTILINE)
