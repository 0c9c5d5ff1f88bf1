"""`python -m imagebuild` is the same as `imagebuild`."""

from imagebuild.cli.main import entry

if __name__ == "__main__":
    entry()
