"""Controller page: switch mode, drafter and draft length, and see why the controller decides."""

from __future__ import annotations

from ui import chrome
from ui.panels import corpora, decisions, guidelines, models, switching

chrome.title("Controller", "Switch speculation live and see what the controller knows")
switching.show()
models.show()
guidelines.show()
corpora.show()
decisions.show()
