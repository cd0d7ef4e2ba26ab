"""The settings of a release: strict models (``model``, ``sections``, ``cluster``), and ``yaml``.

``paths`` makes relative paths absolute, ``regimes`` says which settings go with which regime,
``faults`` tells what is wrong, ``period`` is the calendar of schedules. May import ``storage``.
"""
