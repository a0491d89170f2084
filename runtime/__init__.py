"""Runs plans: reads data, runs kernels, hands records to consumers. Never imports the compiler."""
