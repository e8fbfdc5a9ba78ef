"""How a posterior is shown: its numbers, the table on the terminal, and the HTML page with its pictures."""
