"""Benchmarks page: the runs that were recorded, one of them open, one beside it."""

from __future__ import annotations

from ui import chrome
from ui.panels import benchmarks

chrome.title("Benchmarks", "What paceline bench measured and recorded here")
benchmarks.show()
