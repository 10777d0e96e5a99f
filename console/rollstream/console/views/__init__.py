"""What commands print for people: tables, and a progress bar."""
