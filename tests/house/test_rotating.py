"""What CI always asks is there to be asked, and every room has slow tests that ask it."""

from __future__ import annotations

import re

from support import TESTS
from support.rotating import ASKED_BY, CANARIES


def test_each_canary_is_a_slow_test_that_exists() -> None:
    for name in CANARIES:
        file, _, rest = name.partition("::")
        function = rest.partition("[")[0]
        assert re.search(rf"(?m)^def {function}\(", (TESTS / file).read_text()), name


def test_each_room_has_tests_from_outside() -> None:
    rooms = {path.stem for path in (TESTS.parent / "minidbg").iterdir()}
    assert set(ASKED_BY) <= rooms
    for beginnings in ASKED_BY.values():
        for beginning in beginnings.split():
            parent, name = (TESTS / beginning).parent, (TESTS / beginning).name
            assert list(parent.glob(f"{name}*")), beginning
