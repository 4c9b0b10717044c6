"""Where a class of results lives that a saved program names; nothing imports it but what reads the program."""
