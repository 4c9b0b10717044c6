"""What the core does without: each room is imported by name, from the table of commands."""
