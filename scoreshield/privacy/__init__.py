"""How much noise a guarantee needs, and what releases cost together.

``sensitivity`` says what one changed record can do, ``calibration`` turns that into noise, and
``accounting`` adds releases up. Imports ``arithmetic`` and the root.
"""
