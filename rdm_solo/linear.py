"""The command ``python -m rdm_solo.linear``."""

from rdm_solo import cli

if __name__ == "__main__":
    with cli.errors_as_sentences():
        from rdm_solo.evaluate.linear import main
    main()
