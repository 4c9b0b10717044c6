"""FX graphs: run, recorded, cut, rewritten, copied."""
