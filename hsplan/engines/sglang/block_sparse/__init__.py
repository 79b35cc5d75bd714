"""MiniMax-M3: K and V of grouped heads, and a K-only index beside sparse layers."""
