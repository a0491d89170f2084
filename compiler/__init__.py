"""Tree to typed graph to plan, and the plan's kernels as text and machine code."""
