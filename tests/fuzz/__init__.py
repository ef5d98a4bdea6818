"""Random attacks on layers."""
