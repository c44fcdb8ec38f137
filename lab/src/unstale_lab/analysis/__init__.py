"""Numbers, tables and curves from the records of runs."""
