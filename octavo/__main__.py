"""`python -m octavo`: the same as the console script `octavo`."""

from octavo.commands import main

if __name__ == "__main__":
    main()
