"""What a release says about itself, as strict data.

``schema`` is what a manifest holds, ``words`` what it says, ``build`` makes one, and ``numbers``
tells whether one agrees with itself; ``interactions`` names what a record of ratings is. Imports
every room above it, and no file or clock.
"""
