"""A form of one part of the controller's setting, which the API replaces as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import streamlit as st

from ui import answers, chrome, fields
from ui.client import ApiError

Setting = Mapping[str, Any]


def in_force() -> dict[str, Any] | None:
    """The controller's setting, None while the API or the engine does not tell it."""
    return (chrome.state() or {}).get("controller")


class SettingForm(NamedTuple):
    """name: of its widgets' keys and of the place of its answer; parts: fields of the setting."""

    name: str
    parts: tuple[str, ...]

    def changed(self, setting: Setting) -> bool:
        """Whether the form was drawn from another setting."""
        return fields.changed(self.name, self._part(setting))

    def key(self, setting: Setting, told: Callable[[Setting], str]) -> str:
        """What the keys of its widgets begin with, drawn from this setting. Where another than
        before was set elsewhere, the answer says what `told` says of it."""
        part = self._part(setting)
        if fields.changed(self.name, part):
            answers.keep(self.name, told(setting), good=True)
        return fields.key(self.name, part)

    def apply(self, replace: Callable[[], dict[str, Any]], said: Callable[[Setting], str]) -> None:
        """Have the API replace the part, unless it was changed since the form was drawn.

        replace: asks for it and returns the setting after that, of which `said` is the answer.
        """
        chrome.client().forget_state()
        now = in_force()
        if now is not None and self.changed(now):
            st.rerun()  # the form takes it over and says so, instead of undoing it
        try:
            after = replace()
        except ApiError as error:
            answers.keep(self.name, error.message, good=False)
            return
        fields.keep(self.name, self._part(after))
        answers.keep(self.name, said(after), good=True)

    def _part(self, setting: Setting) -> dict[str, Any]:
        return {name: setting.get(name) for name in self.parts}
