"""Finds a model's folder: the embedded one, a local folder or GGUF file, or a Hugging Face id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.embedded import ModelError, ensure_embedded
from engine.errors import StartError
from engine.folder import CONFIG
from engine.gguf_folder import ensure_converted

EMBEDDED = "embedded"

HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
"""What is taken from the hub: no pickles, no Python code, no second copies in other formats."""

GIVE = (
    "Give a folder with config.json and safetensors, a GGUF file, a Hugging Face id such as "
    '"HuggingFaceTB/SmolLM2-135M-Instruct", or "embedded".'
)


def find_model(model: str, cache_dir: Path, progress: Any = None, option: str = "--model") -> Path:
    """The Hugging Face folder of a model; downloads and converts it first where needed. option:
    what errors call `model`.

    Raises StartError when it cannot be had."""
    if model == EMBEDDED:
        try:
            return ensure_embedded(cache_dir, progress)
        except ModelError as error:
            raise StartError(error.code, error.message) from error
    path = Path(model).expanduser()
    if path.is_dir():
        return _folder(path, cache_dir, progress)
    if path.exists():
        if path.suffix == ".gguf":
            return ensure_converted(path, cache_dir, progress)
        raise StartError("model_not_a_folder", f"{option} {model} is a file. {GIVE}")
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise StartError("model_not_found", f"{option} {model}: no such folder. {GIVE}")
    return _folder(_download(model, option), cache_dir, progress)


def _folder(path: Path, cache_dir: Path, progress: Any) -> Path:
    """A folder as it is, or the conversion of the one GGUF file in it."""
    files = sorted(path.glob("*.gguf"))
    if (path / CONFIG).exists() or not files:
        return path
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:8])
        raise StartError(
            "model_ambiguous",
            f"{path} holds {len(files)} GGUF files; give the path of one of them: {names}.",
        )
    return ensure_converted(files[0], cache_dir, progress)


def _download(hub_id: str, option: str) -> Path:
    """The folder of a hub snapshot; for a repository of GGUF files, of the only one."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=list(HUB_FILES)))
        if not (folder / CONFIG).exists():
            folder = _download_gguf(hub_id, folder)
    except StartError:
        raise
    except Exception as error:  # the hub client raises a dozen unrelated types
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else ""
        raise StartError(
            "model_download_failed",
            f"{option} {hub_id} is neither a local folder nor reachable on the hub "
            f"({type(error).__name__}: {reason}). "
            "Check the name and the network, or download it and give the folder.",
        ) from error
    return folder


def _download_gguf(hub_id: str, folder: Path) -> Path:
    from huggingface_hub import HfApi, hf_hub_download

    files = sorted(name for name in HfApi().list_repo_files(hub_id) if name.endswith(".gguf"))
    if not files:
        return folder  # reading it will say what it lacks
    if len(files) > 1:
        raise StartError(
            "model_ambiguous",
            f"{hub_id} holds {len(files)} GGUF files ({', '.join(files[:8])}); download one of "
            "them and give its path.",
        )
    return Path(hf_hub_download(hub_id, files[0])).parent
