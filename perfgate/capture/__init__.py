"""Taking trials: everything that touches a machine. It writes records and never judges them."""
