"""What operators there are, each defined once."""
