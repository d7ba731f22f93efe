"""Results of other tools: one table of formats, a reader, and two files held side by side."""
