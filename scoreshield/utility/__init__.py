"""What a release is worth: error bounds, forecast, metrics, decisions and rankings."""
