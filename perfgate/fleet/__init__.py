"""Plans in shards, nights, and runs that are joined from parts."""
