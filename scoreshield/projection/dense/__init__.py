"""The projection methods that hold the whole matrix: one file a method, and their eigensolvers."""
