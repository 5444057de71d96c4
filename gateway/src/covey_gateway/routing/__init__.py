"""Who may ask, what a name means, which endpoint takes a request. Pure: time and turn are arguments."""
