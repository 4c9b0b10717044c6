"""A graph and its inputs as Python that reads well, and back."""
