"""DeepSeek-V4 and V4.1: entries for several tokens, windows, and compressor state, each in pools of its own."""
