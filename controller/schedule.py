"""What the batch size decides for the operator: D by a table, and no drafts above a limit."""

from __future__ import annotations

from dataclasses import replace

from controller.contract import MAX_SCHEDULE_ENTRIES, MAX_SCHEDULE_REQUESTS, Setting


def at_batch(setting: Setting, requests: int) -> Setting:
    """The setting that holds for a step with so many decoding requests: the table's D in place
    of a fixed one, and mode off above the limit."""
    limit = setting.max_drafting_requests
    if limit is not None and requests > limit:
        return replace(setting, mode="off", drafter=None, draft_length=None)
    if not setting.schedule:
        return setting
    for largest, length in setting.schedule:
        if requests <= largest:
            return replace(setting, draft_length=length)
    return replace(setting, draft_length=0)


def check_schedule(setting: Setting) -> None:
    """ValueError naming the field when the table or the limit makes no sense or has no effect."""
    limit = setting.max_drafting_requests
    if limit is not None:
        if setting.mode == "off":
            raise ValueError("max_drafting_requests: has no effect in mode off; leave it out")
        if not 0 <= limit <= MAX_SCHEDULE_REQUESTS:
            raise ValueError(f"max_drafting_requests: must be 0 to {MAX_SCHEDULE_REQUESTS}")
    if not setting.schedule:
        return
    if setting.mode != "pinned":
        raise ValueError("schedule: works in mode pinned only, with a drafter")
    if setting.draft_length is not None:
        raise ValueError("schedule: takes the place of draft_length; give one of them")
    if setting.drafter == "none":
        raise ValueError("schedule: has no effect with drafter none; name another")
    if len(setting.schedule) > MAX_SCHEDULE_ENTRIES:
        raise ValueError(f"schedule: takes at most {MAX_SCHEDULE_ENTRIES} entries")
    before = 0
    for largest, length in setting.schedule:
        if not before < largest <= MAX_SCHEDULE_REQUESTS:
            raise ValueError(
                "schedule: the largest batches must rise from entry to entry, from 1 to "
                f"{MAX_SCHEDULE_REQUESTS}"
            )
        if not 0 <= length <= setting.max_draft_length:
            raise ValueError(f"schedule: each D must be 0 to {setting.max_draft_length}")
        before = largest


def because_of_batch(setting: Setting, requests: int) -> str:
    """The sentence of a decision that the batch size made."""
    limit = setting.max_drafting_requests
    if limit is not None and requests > limit:
        return f"{requests} requests decode, above the operator's limit of {limit}: plain decoding."
    resolved = at_batch(setting, requests)
    if setting.schedule:
        return (
            f"{requests} requests decode: the operator's table gives D = {resolved.draft_length}."
        )
    return f"{requests} requests decode, within the operator's limit of {limit} again."
