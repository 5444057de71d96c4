"""`python -m covey`."""

from covey.entry import main

main()
