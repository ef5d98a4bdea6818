"""Work on several runs: studies, comparisons, checks of closed forms and of a GPU.

May import ``reporting``, ``plots``, ``evaluation`` and what is above them.
"""
