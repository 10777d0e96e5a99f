"""One command a file; ``app.build`` calls the ``register(app)`` of each."""
