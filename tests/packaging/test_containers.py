"""compose.yaml and Dockerfile, checked without a container engine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.settings import FIELDS, SECRETS
from tests.conftest import ROOT, Server

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CONSOLE_VARIABLES = {"PACELINE_API_URL", "PACELINE_PUBLIC_API_URL"}
ONE_SHOT = {"migrate"}


def test_compose_file_follows_the_schema() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "check_jsonschema"),
            *("--builtin-schema", "vendor.compose-spec", str(ROOT / "compose.yaml")),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_dockerfile_passes_the_linter() -> None:
    beside = Path(sys.executable).parent / "hadolint"
    linter = str(beside) if beside.exists() else shutil.which("hadolint")
    assert linter, "hadolint is missing; install the dev extra"
    done = subprocess.run(
        [linter, "--failure-threshold", "warning", str(ROOT / "Dockerfile")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_profiles_hold_database_migration_server_and_console() -> None:
    for profile, server in (("cpu", "server"), ("gpu", "server-gpu")):
        members = {name for name, service in SERVICES.items() if profile in service["profiles"]}
        assert members == {"db", "migrate", "ui", server}
    assert "server" in SERVICES["server-gpu"]["networks"]["default"]["aliases"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_variable_is_one_that_the_product_reads(name: str) -> None:
    known = {f"PACELINE_{field.upper()}" for field in FIELDS}
    known |= {f"PACELINE_{field.upper()}_FILE" for field in SECRETS}
    known |= CONSOLE_VARIABLES
    used = {v for v in SERVICES[name].get("environment", {}) if v.startswith("PACELINE_")}
    assert used <= known


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_pinned_checked_and_unprivileged(name: str) -> None:
    service = SERVICES[name]
    assert re.search(r":\d+\.\d+[\w.-]*$", service["image"]), service["image"]
    assert "privileged" not in service
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["init"] is True
    if name in ONE_SHOT:
        assert service["healthcheck"] == {"disable": True}
        assert service["restart"] == "no"
    else:
        assert {"test", "interval", "timeout", "start_period"} <= service["healthcheck"].keys()
        assert "stop_grace_period" in service
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:"), port
    for volume in service.get("volumes", ()):
        assert "docker.sock" not in volume


@pytest.mark.parametrize("name", SERVICES)
def test_secrets_come_as_files(name: str) -> None:
    service = SERVICES[name]
    files = {str(value) for value in service.get("environment", {}).values()}
    for secret in service.get("secrets", ()):
        assert secret in COMPOSE["secrets"]
        assert f"/run/secrets/{secret}" in files
    for variable in service.get("environment", {}):
        assert not re.search(r"(KEY|PASSWORD|DATABASE_URL)$", variable), variable


@pytest.mark.parametrize("stage", ["build", "run"])
def test_base_images_are_pinned(stage: str) -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8")
    assert re.search(rf"^FROM \S+:\d+\.\d+\.\d+\S* AS {stage}$", text, re.MULTILINE)


def test_the_image_holds_every_package_and_runs_unprivileged() -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8")
    ignored = (ROOT / ".dockerignore").read_text("utf-8")
    for package in ("app", "controller", "engine", "migrations", "ui"):
        assert f"COPY {package} /src/{package}" in text
        assert f"!{package}\n" in ignored
    users = re.findall(r"^USER (\S+)$", text, re.MULTILINE)
    assert users
    assert users[-1] not in ("root", "0")


def test_the_health_check_works_on_the_running_server(server: Server) -> None:
    command: list[str] = SERVICES["server"]["healthcheck"]["test"][1:]
    assert command[0] == "python"
    code = command[2].replace("http://127.0.0.1:8000", server.url)
    assert code != command[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wrong = code.replace("/health/ready", "/health/nothing")
    assert subprocess.run([sys.executable, "-c", wrong], capture_output=True).returncode != 0


def test_the_script_for_secrets_makes_every_secret_once(tmp_path: Path) -> None:
    script = ROOT / "docs" / "secrets.sh"
    subprocess.run(["sh", str(script)], cwd=tmp_path, check=True, capture_output=True)
    made = {path.name: path.read_text("utf-8") for path in (tmp_path / "secrets").iterdir()}
    assert set(made) == set(COMPOSE["secrets"])
    assert len(made["admin_key"].strip()) >= 32
    assert made["postgres_password"].strip() in made["database_url"]
    subprocess.run(["sh", str(script)], cwd=tmp_path, check=True, capture_output=True)
    again = {path.name: path.read_text("utf-8") for path in (tmp_path / "secrets").iterdir()}
    assert again == made
