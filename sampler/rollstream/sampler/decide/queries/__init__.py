"""Commands that look and decide nothing. Pure.

- ``evaluation``  ``AskEvaluations``: what rollouts of split ``eval`` earned, by policy
- ``looks``  ``AskStats``, ``AskBatches``, …: they decide and claim nothing
- ``progress``  ``AskProgress``: what became of examples
- ``sampling``  ``SampleGroups``, ``ReadGroups``: groups that somebody looks at
"""
