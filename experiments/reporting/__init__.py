"""Reports in HTML, and tables for the terminal, Markdown, LaTeX and CSV.

May import ``plots``, ``evaluation`` and what is above them.
"""
