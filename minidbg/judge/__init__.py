"""Whether a run shows the failure: run, compared with every legal run of eager, judged."""
