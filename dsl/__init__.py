"""Text to tree: everything about `.pipe` files that a person reads or types."""
