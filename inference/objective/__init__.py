"""The objective: ELBOs of Pyro as losses, checks of guides against models, natural gradients of the
loss.

Every other sub-package but ``io`` may import it.
"""
