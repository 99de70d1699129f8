"""The service: OpenAI-compatible and admin API, storage, command line."""

from importlib import metadata


def package_version() -> str:
    """The installed version; "0.0.0" when the package runs from its folder uninstalled."""
    try:
        return metadata.version("paceline")
    except metadata.PackageNotFoundError:
        return "0.0.0"
