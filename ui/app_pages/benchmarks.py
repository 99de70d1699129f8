"""Benchmarks page: the runs that were recorded, one of them open, and recordings of live steps."""

from __future__ import annotations

from ui import chrome
from ui.panels import benchmarks, recordings

chrome.title("Benchmarks", "What paceline bench measured, and recordings to replay")
benchmarks.show()
recordings.show()
