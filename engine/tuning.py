"""The engine's door for the parameters of a drafter: all of a change are taken, or none."""

from __future__ import annotations

from collections.abc import Mapping

from engine.drafters.parameters import Tunable
from engine.errors import RequestError
from engine.wire import ParameterState, ParameterValue


def tune(name: str, drafter: object, changes: Mapping[str, ParameterValue]) -> None:
    """Change parameters of the drafter of this name. Raises RequestError: unknown_parameter,
    parameter_out_of_range, bad_setting."""
    if not changes:
        return
    if not isinstance(drafter, Tunable):
        message = f"drafter {name} has no parameters."
        raise RequestError("unknown_parameter", message, "parameters")
    checked: dict[str, ParameterValue] = {}
    for key, value in changes.items():
        field = f"parameters.{key[:64]}"
        parameter = drafter.parameters.get(key)
        if parameter is None:
            known = ", ".join(drafter.parameters)
            message = f"drafter {name} has no parameter {key[:64]!r}; it has {known}."
            raise RequestError("unknown_parameter", message, field)
        try:
            checked[key] = parameter.check(value)
        except ValueError as error:
            raise RequestError("parameter_out_of_range", str(error), field) from error
    try:
        drafter.set_parameters(checked)
    except ValueError as error:
        raise RequestError("bad_setting", str(error), "parameters") from error


def parameter_states(drafter: object) -> tuple[ParameterState, ...]:
    """Its parameters with their values; none for a drafter without any."""
    if not isinstance(drafter, Tunable):
        return ()
    values = drafter.values
    return tuple(
        ParameterState(p.name, p.kind, p.low, p.high, p.default, values[name], p.text)
        for name, p in drafter.parameters.items()
    )
