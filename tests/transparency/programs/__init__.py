"""Programs that lean on what a wrapper may disturb. Each is a function of ``compile``, which is ``torch.compile`` with a backend.

What a program returns is compared between the bare and the wrapped run, bit for bit; what it prints and raises too. Each has a relu where
its subject is, since the planted failures are relu's: a program whose relu no compiled graph holds is found out by silence.
"""
