"""HTML reports and tables.

May import ``plots``, ``evaluation`` and what is above them."""
