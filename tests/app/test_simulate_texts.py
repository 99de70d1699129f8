"""Names and kinds of drafters that do not fit the texts are errors, not drafters without luck."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.failures import Failure
from app.simulate.config import read_config
from controller.contract import RECORDING_VERSION
from tests.controller.simulate.small import write_trace

HEAD = """
[machine]
hardware = "H100"
model = "llama-8b"
[load]
kind = "closed"
phases = [{ requests = 2, texts = "own", tokens = 20 }]
[[drafters]]
name = "suffix"
kind = "lookup"
[[drafters]]
name = "mtp"
kind = "head"
rho = 0.1
"""
OWN = """
[[texts]]
name = "own"
count = 3
drafters.mtp = { hot = [0.8], cold = [0.5] }
drafters.suffix = { hot = [0.5], cold = [0.1], match = 0.4 }
[[texts.breaks]]
at = 200
drafters.suffix = { hot = [0.95], cold = [0.8], match = 0.9 }
"""


def others(text: str) -> str:
    return HEAD + OWN + f'[[texts]]\nname = "other"\n{text}\n'


def read(folder: Path, text: str) -> None:
    path = folder / "run.toml"
    path.write_text(text)
    read_config(path).scenario(folder)


def recording(folder: Path, **drafters: str) -> None:
    """One in which nothing was drafted or scored."""
    row = {"request": 1, "context": 9, "drafter": "none", "drafted": 0, "accepted": 0,
           "committed": 4}  # fmt: skip
    records = (
        {"recording": RECORDING_VERSION, "drafters": drafters},
        {"arrived": {"request": 1, "prompt": 8}},
        {"verify_ms": 5.0, "requests": [row]},
    )
    (folder / "live.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))


def test_texts_of_own_rates_may_leave_a_drafter_out_on_purpose(tmp_path: Path) -> None:
    read(tmp_path, HEAD + OWN)
    read(tmp_path, others("drafters.mtp = { hot = [0.8], cold = [0.5] }"))


@pytest.mark.parametrize(
    ("wrong", "right", "problem"),
    [
        (
            "drafters.suffix = { hot = [0.5]", "drafters.sufix = { hot = [0.5]",
            "breaks: suffix gets other rates at 200, but drafters.suffix has none",
        ),
        (
            "drafters.suffix = { hot = [0.95]", "drafters.sufix = { hot = [0.95]",
            "texts.own: breaks: sufix gets other rates at 200",
        ),
        (
            "drafters.mtp =", "drafters.mpt =",
            r"texts.own.drafters.mpt: no such drafter is in \[\[drafters\]\], but suffix, mtp",
        ),
        (
            "drafters.mtp = { hot = [0.8], cold = [0.5] }", "",
            "drafters: no text knows 'mtp'; give its rates as texts.NAME.drafters.mtp",
        ),
        (", match = 0.4", "", "texts.own.drafters.suffix: it is a lookup, so give match"),
        (
            "cold = [0.5]", "cold = [0.5], match = 0.5",
            "texts.own.drafters.mtp: match is of lookups, but it is a head",
        ),
        ("hot = [0.8]", "hot = []", "texts.own: rates: give chances"),
    ],
)  # fmt: skip
def test_a_name_or_a_kind_that_the_rates_do_not_fit_is_named(
    tmp_path: Path, wrong: str, right: str, problem: str
) -> None:
    assert wrong in OWN
    with pytest.raises(ValueError, match=problem):
        read(tmp_path, HEAD + OWN.replace(wrong, right))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('synthetic = "edits"', "texts.other: it does not know the drafter 'suffix', but eagle"),
        ('trace = "a.jsonl"', "texts.other: it does not know the drafter 'suffix', but eagle, ngr"),
        ('recording = "live.jsonl"', "texts.other: it does not know the drafter 'mtp', but suffix"),
        ('synthetic = "jokes"', "texts.other: synthetic: 'jokes' is not one of mixed"),
        ('synthetic = ["edits", "jokes"]', "texts.other: synthetic: 'jokes' is not one of mixed"),
    ],
)
def test_texts_whose_drafters_are_given_must_know_all_of_the_machine(
    tmp_path: Path, text: str, problem: str
) -> None:
    write_trace(tmp_path / "a.jsonl", count=2)
    recording(tmp_path, suffix="model_free")
    with pytest.raises(ValueError, match=problem):
        read(tmp_path, others(text))


RATES = "drafters.mtp = { hot = [0.8], cold = [0.5] }"


@pytest.mark.parametrize(
    ("given", "beside", "goes_with"),
    [
        ("prompt = 100", "trace", "drafters"),
        ("output = 100", "recording", "drafters"),
        ("output = 100", "synthetic", "drafters"),
        ("count = 9", "trace", "synthetic or drafters"),
        ("count = 9", "recording", "synthetic or drafters"),
        ("breaks = [{ at = 3, drafters = {} }]", "synthetic", "drafters"),
    ],
)
def test_what_would_have_no_effect_is_refused(
    tmp_path: Path, given: str, beside: str, goes_with: str
) -> None:
    name = given.partition(" ")[0]
    problem = f"texts.other: {name}: it has no effect beside {beside}, but goes with {goes_with}$"
    with pytest.raises(ValueError, match=problem):
        read(tmp_path, others(f'{beside} = "a"\n{given}'))


def test_a_list_of_recipes_makes_texts_of_each(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    text = 'synthetic = ["rag", "qa", "qa"]\ncount = 30'
    path.write_text(renamed("ngram", "eagle") + text)
    library = read_config(path).scenario(tmp_path).library
    prompts = [int(library.prompts[i]) for i in library.ranges["other"]]
    assert [prompt >= 750 for prompt in prompts] == [True, False, False] * 10
    path.write_text(renamed("ngram", "eagle") + text.replace("30", "2"))
    with pytest.raises(ValueError, match=r"texts\.other: count: 2 texts are too few for 3 recipes"):
        read_config(path).scenario(tmp_path)


def test_texts_come_from_one_place(tmp_path: Path) -> None:
    for text in ('synthetic = "edits"\ntrace = "a"', f'recording = "a"\n{RATES}', ""):
        with pytest.raises(ValueError, match=r"texts\.other: give one of trace, recording, synth"):
            read(tmp_path, others(text))


def test_own_rates_may_have_lengths_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(others(f"{RATES}\nprompt = 4000\noutput = 10\ncount = 20"))
    library = read_config(path).scenario(tmp_path).library
    made = library.ranges["other"]
    assert len(made) == 20
    assert all(2000 <= library.prompts[i] <= 6000 for i in made)
    assert all(library.last[i] - library.first[i] <= 15 for i in made)


@pytest.mark.parametrize(
    ("kind", "cost", "problem"),
    [
        ("lookup", "rho = 0.1", "a lookup takes no cost, not rho"),
        ("head", 'model = "llama-1b"', "a head takes pass_ms or rho, not model"),
        ("head", "rho = 0.1\npass_ms = 1.0", "a head takes pass_ms or rho, not pass_ms and rho"),
        (
            "draft_model",
            'model = "llama-1b"\nrho = 0.1',
            "a draft_model takes model, not rho and m",
        ),
    ],
)
def test_a_cost_that_would_have_no_effect_is_refused(
    tmp_path: Path, kind: str, cost: str, problem: str
) -> None:
    text = HEAD.replace('kind = "head"\nrho = 0.1', f'kind = "{kind}"\n{cost}')
    assert text != HEAD
    with pytest.raises(ValueError, match=rf"drafters\.mtp: {problem}"):
        read(tmp_path, text + OWN)


def renamed(suffix: str, mtp: str) -> str:
    found = HEAD.replace('"suffix"', f'"{suffix}"').replace('"mtp"', f'"{mtp}"')
    return found.replace('"own"', '"other"') + '[[texts]]\nname = "other"\n'


def test_they_may_know_more_than_the_machine_has(tmp_path: Path) -> None:
    write_trace(tmp_path / "a.jsonl", count=2)
    recording(tmp_path, suffix="model_free", mtp="model", ngram="model_free")
    read(tmp_path, renamed("suffix", "mtp") + 'recording = "live.jsonl"')
    both = renamed("ngram", "eagle")
    alone = both.replace('[[drafters]]\nname = "ngram"\nkind = "lookup"\n', "")
    assert alone != both
    for text in ('trace = "a.jsonl"', 'synthetic = "mixed"'):
        read(tmp_path, both + text)
        read(tmp_path, alone + text)


@pytest.mark.parametrize("text", ['trace = "a.jsonl"', 'synthetic = "mixed"'])
def test_a_drafter_is_of_the_kind_that_the_texts_know(tmp_path: Path, text: str) -> None:
    write_trace(tmp_path / "a.jsonl", count=2)
    with pytest.raises(ValueError, match=r"'eagle' is a lookup, but texts\.other .* a head"):
        read(tmp_path, renamed("eagle", "ngram") + text)


def test_two_texts_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="texts: each needs a name of its own"):
        read(tmp_path, HEAD + OWN + OWN)


def test_an_unknown_field_is_still_an_error_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="sedd"):
        read(tmp_path, "sedd = 1\n" + HEAD + OWN)
