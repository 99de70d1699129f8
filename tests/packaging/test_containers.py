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


@pytest.mark.parametrize("name", ["server", "server-gpu"])
def test_the_address_of_the_console_can_be_told_to_the_server(name: str) -> None:
    assert SERVICES[name]["environment"]["PACELINE_UI_ORIGIN"] == "${PACELINE_UI_ORIGIN:-}"


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


@pytest.mark.parametrize("stage", ["build", "run-cpu"])
def test_base_images_are_pinned(stage: str) -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8")
    assert re.search(rf"^FROM \S+:\d+\.\d+\.\d+\S* AS {stage}$", text, re.MULTILINE)


def stages() -> dict[str, str]:
    """The text of each stage of the Dockerfile, by its name."""
    parts = re.split(r"^(?=FROM )", (ROOT / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    return {part.split("\n", 1)[0].split(" AS ")[1]: part for part in parts[1:]}


def test_only_the_gpu_image_holds_what_compiles_kernels() -> None:
    """FlashInfer compiles at the first start: $CUDA_HOME/bin/nvcc, c++ and ninja."""
    found = stages()
    assert re.search(r"^FROM run-\$\{BUILD\}", found["run"])
    assert re.search(r"^FROM run-cpu ", found["run-gpu"])
    assert re.search(r"apt-get install .*g\+\+ ninja-build", found["run-gpu"])
    assert "CUDA_HOME=/opt/paceline/cuda" in found["run-gpu"]
    for name in ("run-cpu", "run"):
        assert not re.search(r"g\+\+|ninja|CUDA_HOME|nvcc", found[name]), name


def test_the_gpu_build_makes_a_toolkit_of_torchs_own_cuda_version() -> None:
    made = re.search(r"^RUN if \[ \"\$BUILD\" = gpu \].*?fi$", stages()["build"], re.M | re.S)
    assert made
    text = made[0]
    assert "torch.version.cuda" in text
    parts = re.search(r"cuda-toolkit\[([a-z,]+)\]==\$cuda", text)
    assert parts
    # nvcc takes any version of nvvm and crt, and a newer one writes code that its ptxas refuses.
    assert {"nvcc", "nvvm", "crt", "cccl", "cudart", "curand"} <= set(parts[1].split(","))
    for link in ("/opt/paceline/cuda", "$home/lib64", "lib/libcudart.so", "stubs/libcuda.so"):
        assert f'{link}"' in text or f"{link} " in text, link
    assert text.index("pip install") < text.index('"$home/bin/nvcc" --version')


def test_both_images_find_their_stage() -> None:
    assert SERVICES["server-gpu"]["build"]["args"] == {"BUILD": "gpu"}
    assert SERVICES["server"]["build"] == "."
    assert re.search(r"^ARG BUILD=cpu$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert {"run-cpu", "run-gpu"} <= stages().keys()


def test_flashinfer_looks_where_the_image_has_its_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own code, asked for the build file of a kernel, names what the GPU image holds."""
    cpp_ext = pytest.importorskip("flashinfer.jit.cpp_ext")
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
    for variable in ("CXX", "FLASHINFER_NVCC"):
        monkeypatch.delenv(variable, raising=False)
    cached = (cpp_ext.get_cuda_path, cpp_ext.get_cuda_version)
    for each in cached:
        each.cache_clear()
    try:
        text = cpp_ext.generate_ninja_build_for_op(
            name="kernel",
            sources=[tmp_path / "kernel.cu"],
            extra_cflags=None,
            extra_cuda_cflags=["-gencode=arch=compute_90a,code=sm_90a"],
            extra_ldflags=None,
            extra_include_dirs=None,
            needs_device_linking=False,
        )
    finally:
        for each in cached:
            each.cache_clear()
    assert f"cuda_home = {tmp_path}" in text
    assert "nvcc = $cuda_home/bin/nvcc" in text
    assert re.search(r"^cxx = c\+\+$", text, re.MULTILINE)
    assert "$cuda_home/include" in text
    for wanted in ("-L$cuda_home/lib64", "-L$cuda_home/lib64/stubs", "-lcudart", "-lcuda"):
        assert wanted in text


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
