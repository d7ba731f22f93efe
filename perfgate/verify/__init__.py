"""What a run folder, a night or a baseline claims, checked."""
