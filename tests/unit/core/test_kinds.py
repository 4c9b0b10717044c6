"""What is known of a kind stands in one row."""

import pytest

from minidbg.core.kinds import TRAITS, Kind
from minidbg.core.outcome import Outcome, Signature, Verdict


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_has_a_row_whose_words_can_be_said(kind: Kind) -> None:
    traits = TRAITS[kind]
    assert "relu" in traits.title.format(backend="acme", ops="relu")
    assert "acme" in traits.title.format(backend="acme", ops="relu")
    assert traits.warning
    assert not (traits.raises and traits.dies)
    assert not traits.endless or traits.dies


OTHERWISE = {Kind.CRASH: Verdict.CRASHED, Kind.HANG: Verdict.TIMEOUT}


@pytest.mark.parametrize("kind", Kind)
def test_a_failure_of_another_kind_is_changed_or_says_how_the_process_ended(kind: Kind) -> None:
    expected = Signature(next(one for one in Kind if one is not kind))
    found = Outcome(Verdict.CHANGED, Signature(kind))
    assert found.judged_against(expected).verdict is OTHERWISE.get(kind, Verdict.CHANGED)
