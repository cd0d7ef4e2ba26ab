"""What the mechanism demonstrably gives away: an audit of the claim, and attacks on releases.

``audit`` draws releases of a worst ``pair``, ``bound`` says what wrong guesses prove, ``result``
puts claim and proof side by side; ``attacks`` tell how far actual adversaries come. Imports what
makes noisy values (``arithmetic``, ``privacy``, ``noise``, ``mechanisms``) and the root.
"""
