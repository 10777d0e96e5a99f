"""One command a file, with the table that it prints; ``app.build`` lists them."""
