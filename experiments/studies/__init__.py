"""Work on several runs: studies, comparisons, checks of posteriors and of closed forms.

May import ``reporting``, ``plots``, ``evaluation`` and what is above them.
"""
