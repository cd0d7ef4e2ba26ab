"""What ``plan`` tells before anything is spent, and the rates this machine was measured at."""
