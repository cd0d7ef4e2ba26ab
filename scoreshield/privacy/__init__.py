"""How much noise a guarantee needs: sensitivity, calibration and the accountant."""
