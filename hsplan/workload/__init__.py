"""Which tokens sparse attention reads, and what a hot buffer then misses: traces and their simulation (numpy)."""
