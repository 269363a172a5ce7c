"""Models, tables and columns that tests build."""
