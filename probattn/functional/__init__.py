"""Pure, batched maths: tensors in, tensors out; no Pyro, no modules, no state."""
