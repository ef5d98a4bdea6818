"""Export of trained models to plain torch modules and ``torch.export`` programs.

May import ``io``, ``distributed`` and ``prediction``.
"""
