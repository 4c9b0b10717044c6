"""What is known of a kind stands in one row; few files name one."""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

import minidbg
from minidbg.words.kinds import TRAITS, Kind, Traits
from minidbg.words.outcome import Outcome, Signature, Verdict

PACKAGE = Path(minidbg.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

NAMERS = {
    "words/kinds.py": "the one table",
    "words/run_spec.py": "what a script expects that does not say",
    "asking/execute.py": "inductor may stop before the stages that such a failure never reaches",
    "extras/hunt/judging.py": "a hunt's own table of fates",
    "judge/death.py": "says it: of a process that died or was ended",
    "judge/harness.py": "says it: of results that differ",
    "wrapper/capture.py": "says it: of results that differ",
    "wrapper/flight.py": "says it: of a process that did not come back",
    "wrapper/graph_state.py": "says it: of a backend that raised, or of what it made",
    "wrapper/verify.py": "says it: of results that differ",
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_kind_is_named_where_the_list_says(path: Path) -> None:
    named = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and ast.unparse(node.value) == "Kind"
        and node.attr in Kind.__members__
    }
    assert bool(named) is (str(path.relative_to(PACKAGE)) in NAMERS), named


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_has_a_row_whose_words_can_be_said(kind: Kind) -> None:
    traits = TRAITS[kind]
    assert "relu" in traits.title.format(backend="acme", ops="relu")
    assert "acme" in traits.title.format(backend="acme", ops="relu")
    assert "acme" in traits.verdict.format(backend="acme")
    assert traits.report
    assert traits.warning
    assert not (traits.raises and traits.dies)
    assert not traits.endless or traits.dies


def test_no_two_kinds_read_alike() -> None:
    for one in fields(Traits):
        if one.name in ("title", "verdict", "report", "warning"):
            texts = [getattr(traits, one.name) for traits in TRAITS.values()]
            assert len(set(texts)) == len(texts), one.name


OTHERWISE = {Kind.CRASH: Verdict.CRASHED, Kind.HANG: Verdict.TIMEOUT}


@pytest.mark.parametrize("kind", Kind)
def test_a_failure_of_another_kind_is_changed_or_says_how_the_process_ended(kind: Kind) -> None:
    expected = Signature(next(one for one in Kind if one is not kind))
    found = Outcome(Verdict.CHANGED, Signature(kind))
    assert found.judged_against(expected).verdict is OTHERWISE.get(kind, Verdict.CHANGED)
