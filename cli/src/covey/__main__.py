"""`python -m covey`."""

from covey.main import main

main()
