"""The page of a run: one HTML document, served or written as a file.

- ``shown``     what the page shows of a run, as JSON
- ``rollout``   what the page of a rollout shows, as JSON
- ``document``  the HTML document, with everything in it
- ``look``      a run that is looked at: its files, and its logs where a broker answers
- ``server``    serves it
- ``run.html``, ``run.css``, ``run.js``  the document's parts
"""
