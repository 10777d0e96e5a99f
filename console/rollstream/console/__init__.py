"""The command line. A command reads arguments, calls one function of a package below, and prints.

Map:

- ``entry``      ``main``, which the script calls; names the extra that is missing
- ``app``        lists the commands and prints errors as one line
- ``options``    options that several commands take
- ``showing``    prints tables and sentences, unwrapped where stdout is no terminal
- ``status_view``  the tables and sentences of ``status``
- ``watching``   ``status --watch`` on a full screen
- ``paging``     the same through $PAGER on a terminal
- ``rollout_text``  a rollout as text, and as JSON
- ``tokens``     the configured tokenizers
- ``services``   the broker, store, clock and stop signal that commands use
- ``commands/``  one command a file, with the table that it prints
- ``page/``      the page of a run
- ``fetching``   the progress bar of the embedded Kafka's start
- ``broker/``    the embedded Kafka of ``rollstream up``
"""
