"""A transformer that learns with GRPO: torch and transformers over a real Kafka.

Run it with ``make grpo``; README.md shows the lines that matter.

words      problems of reasoning-gym, and the model's tokens for them
model      a small Llama with random weights, and its files
sampling   answers with their log-probs, by ``model.generate``
worker     an env worker, as a process: follows the policy, samples groups, publishes them
loss       GRPO's loss over packs
peers      what data-parallel ranks say to each other, each with a deadline
checkpoint what a rank begins with
rank       a rank of the trainer, as a process: batches in, steps, weights out
settings   the run's numbers, each with its reason
ranks      starts the ranks, and starts them again when one was killed
trained    what the ranks recorded of each step
again      trains the same steps once more, without a kill, and compares
curve      the picture
run        all of it
"""
