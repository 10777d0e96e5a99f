"""One command a file. Each has ``register(app)``, which adds it; nothing else lists them."""
