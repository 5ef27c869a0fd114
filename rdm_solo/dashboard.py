"""The command ``python -m rdm_solo.dashboard``."""

from rdm_solo import cli

if __name__ == "__main__":
    with cli.errors_as_sentences():
        from rdm_solo.loggers.dashboard import main
    main()
