"""What a loss is computed from.

- ``advantages``  how much better than its group each trajectory did
- ``examples``  ``Examples`` and ``RLExample``: what a loss is computed from
- ``policy_order``  which of two policies is the newer one
- ``prompt_response``  ``PromptResponse``: examples in the shape of trainers that pad
- ``stored_examples``  examples that ``create_and_store_batch`` wrote, by their id
- ``turns``  which turns of a trajectory are one sequence
"""
