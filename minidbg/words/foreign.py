"""What can be had of somebody else's exception. Each of its methods may raise: that must not take the place of the exception."""

from __future__ import annotations


def message_of(error: BaseException) -> str:
    """Its text; empty where there is none to be had."""
    try:
        # a plain str, also where a class of texts was given
        return str.__str__(str(error))
    except Exception:  # noqa: BLE001 - a foreign method
        return ""


def first_line_of(error: BaseException) -> str:
    """``ValueError: no kernel``: its class, and the first line of its text."""
    return f"{type(error).__name__}: {message_of(error).strip().partition(chr(10))[0]}".rstrip(": ")


def inner_of(error: BaseException) -> BaseException | None:
    """What dynamo has wrapped in it, else what it was raised from."""
    for name in ("inner_exception", "__cause__"):
        try:
            inner = getattr(error, name, None)
        except Exception:  # noqa: BLE001 - a foreign property
            continue
        if isinstance(inner, BaseException):
            return inner
    return None
