"""Reports in HTML, and tables for the terminal, Markdown and LaTeX.

May import ``plots``, ``evaluation`` and what is above them.
"""
