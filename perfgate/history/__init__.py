"""The history of what was measured: runs, nights and baselines as one table, the changes in it, and pages of it."""
