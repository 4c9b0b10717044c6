"""What everybody shares: values, settings, errors, text. Nothing here imports torch."""
