"""Names of topics, their layout, their creation and checks."""
