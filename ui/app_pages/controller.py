"""Controller page: switch mode, policy, drafter and D, and see why the controller decides."""

from __future__ import annotations

from ui import chrome
from ui.panels import corpora, decisions, models, switching

chrome.title("Controller", "Switch speculation live and see what the controller knows")
switching.show()
models.show()
corpora.show()
decisions.show()
