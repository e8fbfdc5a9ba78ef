"""The report of a posterior: its numbers, the table on the terminal, and the HTML page with its pictures."""
