"""Text from outside where Streamlit reads Markdown: labels, help, progress, metrics, errors."""

from __future__ import annotations

import re

_MARKS = re.compile(r"[\\`*\[\]<$~&]|:(?=[A-Za-z_+-])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[#>+-]")
_NUMBERED = re.compile(r"^(\d+)(?=[.)](?: |$))")


def plain(text: object) -> str:
    """The text, in one line, as Markdown that shows it as it is: no image is fetched for it and no
    link hides where it leads. Names such as draft_model stay as they are, since a label is also
    read aloud."""
    line = " ".join(str(text).split())
    return _NUMBERED.sub(r"\1\\", _MARKS.sub(r"\\\g<0>", line))
