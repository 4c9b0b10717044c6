"""Rules of the source itself, each one item that lists what breaks it, and the numbers that may only fall (``ratchets.py``)."""
