"""As dicp: one distribution with two entry points."""
