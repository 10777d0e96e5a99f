"""How long a ``RolloutProducer`` gathers what it publishes, and its thread sleeps."""

# Records of many rollouts cost the broker, the sealer and this process least; nobody waits for one
# rollout, and ``flush`` does not wait for it either.
LINGER_S = 0.05
BEHIND_S = 0.005  # The same while a record that is due waits for the report of one before it.
IDLE_S = 60.0  # A thread with nothing to do looks once in this time; ``wake`` ends the wait.
