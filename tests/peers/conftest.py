"""Each retold test is a program of its own."""

from support.new_process import as_in_a_new_process  # noqa: F401 - a fixture for all tests here
