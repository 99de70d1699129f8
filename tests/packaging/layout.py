"""The layout page: one line per source file, from the files' own first docstring lines."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- files: make docs -->", "<!-- end of files -->"
PACKAGES = ("app", "engine", "controller", "ui", "migrations")


def source_files() -> list[Path]:
    return [
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    ]


def first_line(path: Path) -> str:
    """First line of the module's docstring, "" without one."""
    docstring = ast.get_docstring(ast.parse((ROOT / path).read_text("utf-8"))) or ""
    return docstring.partition("\n")[0].strip()


def listing() -> str:
    """The generated part of the page: a table per folder."""
    lines: list[str] = []
    folder: Path | None = None
    for path in sorted(source_files(), key=lambda p: (PACKAGES.index(p.parts[0]), p.parent, p)):
        if path.parent != folder:
            folder = path.parent
            package = first_line(folder / "__init__.py") if has_init(folder) else ""
            lines += ["", f"### `{folder.as_posix()}/`", "", package, "", "| file | what |"]
            lines += ["|---|---|"]
        if path.name != "__init__.py":
            lines.append(f"| `{path.name}` | {first_line(path).replace('|', '/')} |")
    return "\n".join(lines).strip() + "\n"


def has_init(folder: Path) -> bool:
    return (ROOT / folder / "__init__.py").exists()


def main() -> None:
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{listing()}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
