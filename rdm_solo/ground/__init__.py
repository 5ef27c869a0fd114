"""What every room may use: errors, checks of values, installed packages, devices, processes."""
