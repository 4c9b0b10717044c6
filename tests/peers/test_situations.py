"""Every situation in which torch's own minifier was measured: one step, no edit by hand, a verified repro of the right bug.

Healthy programs are among them: there is nothing to say about those.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from situations import SITUATIONS, Situation, with_minidbg

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(1500)]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_ends_in_one_step(situation: Situation, tmp_path: Path) -> None:
    result = with_minidbg(situation, tmp_path)
    assert result.is_right_for(situation), result


def test_all_rows_of_the_table_are_there() -> None:
    """25 of the 28; the other three are the same programs after an edit of the launcher by hand. And the controls."""
    assert sum(len(situation.afters) for situation in SITUATIONS if situation.kind is not None) == 25
    assert sum(situation.kind is None for situation in SITUATIONS) == 3
