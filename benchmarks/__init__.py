"""Measurements against peers: `python -m benchmarks W1 W1u8 W4`, all loaders in one interleaved run."""
