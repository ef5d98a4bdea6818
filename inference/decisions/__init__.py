"""Acting on uncertainty: when to abstain, and which classes to keep."""
