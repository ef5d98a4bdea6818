"""Pure, batched mathematics: functions of tensors, without Pyro, modules or state."""
