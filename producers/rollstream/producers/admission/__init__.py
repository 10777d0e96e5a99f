"""What samplers tell env workers: policies, and how many groups each may begin.

- ``log``  follows ``admission.<env>`` for all producers of a process's environment
"""
