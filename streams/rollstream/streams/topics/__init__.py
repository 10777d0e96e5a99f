"""Names of topics, their layout, their creation and checks.

- ``layout``   what each topic is called
- ``specs``    how each must be configured
- ``create``   makes what is missing
- ``check``    compares topics with their specification; names each difference and its remedy
- ``lost``     whether a root knows of more than a log holds
- ``readable`` which seal logs cannot be read on
- ``root``     which store's root a deployment has
"""
