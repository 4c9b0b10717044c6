"""What is written as TOML is read back, whatever it holds."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minidbg.repro.header import write_lines, write_value

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_every_table_is_read_back(table):
    lines = "\n".join(write_lines({"x": table, "signature": table}))
    assert tomllib.loads(lines).get("x") == tomllib.loads(lines).get("signature") == table


@given(st.text())
def test_a_string_stays_on_one_line_for_every_reader(text):
    written = write_value(text)
    assert written.splitlines() == [written]
    written.encode()


@pytest.mark.parametrize(
    "hostile", ['"""', "\\", "\\u0041", "'''", "\x00\x1b\x7f\x85\u2028\r\n", "# ///", "\ud800"]
)
def test_hostile_strings_are_read_back(hostile):
    read = tomllib.loads(f"message = {write_value(hostile)}")["message"]
    assert read == hostile.replace("\ud800", "\ufffd")


def test_a_value_without_a_form_is_an_error():
    with pytest.raises(TypeError, match="NoneType"):
        write_value(None)
